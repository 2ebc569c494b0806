# SPDX-License-Identifier: Apache-2.0
"""Train the paper's small convolutional network on MNIST under differential privacy.

    python examples/mnist.py --epsilon 3

Nothing but the budget is set: steps, batches and step size follow from it.
"""

import argparse
import sys

import torch
from torch import nn

import armijo
from armijo import Budget
from armijo.networks import Standardize, cnn_small, he_init_
from armijo_reproduction import datasets


def main() -> None:
    """Train, and print accuracy on the publisher's test images and the guarantee."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--epsilon", type=float, default=3.0)
    arguments.add_argument("--steps", type=int, default=None)
    arguments.add_argument("--method", default="auto")
    arguments.add_argument("--dataset", default="mnist")
    asked = arguments.parse_args()
    train, test = datasets.load(asked.dataset).published_split()
    images, labels = torch.from_numpy(test.X), torch.from_numpy(test.y)

    def accuracy(model: nn.Module) -> float:
        with torch.no_grad():
            return float((model(images).argmax(1) == labels).float().mean())

    model = nn.Sequential(Standardize(), he_init_(cnn_small()))
    run = armijo.train(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        (torch.from_numpy(train.X), torch.from_numpy(train.y)),
        Budget(epsilon=asked.epsilon, delta=1e-5),
        method=asked.method,
        steps=asked.steps,
        n_rows=len(train.y),
        ledger=f"{asked.dataset}-ledger.jsonl",
        evaluate=accuracy,
        evaluate_every=50,
        progress=True,
    )
    for step, value in run.evaluations:
        sys.stdout.write(f"step {step}: accuracy {value:.4f}\n")
    sys.stdout.write(f"{run.privacy}\n")


if __name__ == "__main__":
    main()
