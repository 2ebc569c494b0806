# SPDX-License-Identifier: Apache-2.0
"""Fine-tune the head of a network whose first layers stay frozen.

    python examples/frozen_backbone.py

The backbone is trained on Fashion-MNIST, which counts as public here; its head is then
trained on MNIST under differential privacy.  Only the head's parameters get noise.
"""

import argparse
import sys

import torch
from torch import nn

import armijo
from armijo import Budget
from armijo.networks import cnn_small
from armijo_reproduction import datasets

LOSS = nn.CrossEntropyLoss(reduction="none")


def pretrained(steps: int) -> nn.Sequential:
    """Return a network trained without privacy on public images."""
    public, _ = datasets.load("fashion-mnist").published_split()
    images, labels = torch.from_numpy(public.X), torch.from_numpy(public.y)
    model = cnn_small()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(steps):
        chosen = torch.randint(0, len(labels), (256,))
        optimizer.zero_grad()
        LOSS(model(images[chosen]), labels[chosen]).mean().backward()
        optimizer.step()
    return model


def main() -> None:
    """Freeze the convolutions, train the rest, and print the guarantee."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--steps", type=int, default=400)
    arguments.add_argument("--public-steps", type=int, default=600)
    asked = arguments.parse_args()
    private, test = datasets.load("mnist").published_split()
    model = pretrained(asked.public_steps)
    for layer in model:
        if isinstance(layer, nn.Conv2d):
            layer.requires_grad_(False)
    run = armijo.train(
        model,
        LOSS,
        (torch.from_numpy(private.X), torch.from_numpy(private.y)),
        Budget(epsilon=1.0, delta=1e-5),
        steps=asked.steps,
        n_rows=len(private.y),
        progress=True,
    )
    with torch.no_grad():
        guesses = model(torch.from_numpy(test.X)).argmax(1).numpy()
    sys.stdout.write(f"accuracy {(guesses == test.y).mean():.4f}\n{run.privacy}\n")


if __name__ == "__main__":
    main()
