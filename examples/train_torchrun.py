# SPDX-License-Identifier: Apache-2.0
"""Train one network in several processes under one promise.

    torchrun --nproc-per-node 2 examples/train_torchrun.py
    torchrun --nproc-per-node 2 examples/train_torchrun.py --dataset mnist

Each process holds its own share of the rows and samples it by itself; sums are added
up, the first process adds the noise and keeps the ledger, and all take the same step.
"""

import argparse
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

import armijo
from armijo import Budget
from armijo.networks import cnn_small
from armijo_reproduction import datasets

Examples = tuple[Tensor, Tensor]


def generated(n_rows: int = 6000) -> tuple[Examples, Examples]:
    """Return points around ten centers, for training and for testing."""
    bits = torch.Generator().manual_seed(0)
    centers = torch.randn(10, 20, generator=bits)
    labels = torch.randint(0, 10, (n_rows + 1000,), generator=bits)
    points = centers[labels] + torch.randn(len(labels), 20, generator=bits)
    return (points[1000:], labels[1000:]), (points[:1000], labels[:1000])


def published(name: str) -> tuple[Examples, Examples]:
    """Return the publisher's images for training and for testing."""
    train, test = datasets.load(name).published_split()
    return (
        (torch.from_numpy(train.X), torch.from_numpy(train.y)),
        (torch.from_numpy(test.X), torch.from_numpy(test.y)),
    )


def main() -> None:
    """Train on this process's share; the first one prints what came out."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--dataset", choices=("generated", "mnist"), default="generated"
    )
    arguments.add_argument("--epsilon", type=float, default=3.0)
    arguments.add_argument("--steps", type=int, default=100)
    arguments.add_argument("--ledger")
    asked = arguments.parse_args()
    device = "cpu"
    if torch.cuda.is_available():
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    # A process that hangs is given up after this time; one that dies, at once.
    dist.init_process_group(
        "nccl" if torch.cuda.is_available() else "gloo", timeout=timedelta(minutes=2)
    )
    rank, size = dist.get_rank(), dist.get_world_size()

    model: nn.Module = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
    (X, y), (X_test, y_test) = generated()
    if asked.dataset == "mnist":
        model, ((X, y), (X_test, y_test)) = cnn_small(), published("mnist")
    run = armijo.train(
        model,
        nn.CrossEntropyLoss(reduction="none"),
        (X[rank::size], y[rank::size]),  # no row in two processes
        Budget(epsilon=asked.epsilon, delta=1e-5),
        steps=asked.steps,
        n_rows=len(y),  # of all processes together
        device=device,
        ledger=asked.ledger,
        distributed=True,
        progress=True,
    )
    if rank == 0:
        with torch.no_grad():
            right = model(X_test.to(device)).argmax(1).cpu() == y_test
        accuracy = float(right.float().mean())
        sys.stdout.write(f"{size} processes, accuracy {accuracy:.4f}\n{run.privacy}\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
