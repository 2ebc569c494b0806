# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the paper's networks trained by ``armijo.train`` with nothing set.

    python -m benchmarks.network_accuracy fashion-mnist cnn_small --epsilon 1 3

Inputs are standardized and weights drawn by He's rule, unless ``--plain``.  Each run is
a private one, without a seed, and is appended to ``docs/results/networks.csv``:
accuracy on the publisher's test images, or with ``--validation`` on the last sixth of
the training images, which the run then does not have.  Seconds are processor time of
the whole training, which other work on the machine does not change much.
"""

import argparse
import time
from itertools import product
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor, nn

import armijo
from armijo import networks
from armijo.registry import NETWORK_METHODS
from armijo_reproduction import datasets

RESULTS = Path("docs", "results", "networks.csv")


def parts(name: str, rows: int | None, validation: bool) -> tuple[Tensor, ...]:
    """Return images and labels to train with and to measure on."""
    train, test = datasets.load(name).published_split()
    X, y = torch.from_numpy(train.X), torch.from_numpy(train.y)
    if validation:
        kept = len(y) * 5 // 6
        return X[:kept][:rows], y[:kept][:rows], X[kept:], y[kept:]
    return X[:rows], y[:rows], torch.from_numpy(test.X), torch.from_numpy(test.y)


def module_of(name: str, plain: bool) -> nn.Module:
    """Return a network with fresh weights."""
    network: nn.Module = getattr(networks, name)()
    if plain:
        return network
    return nn.Sequential(networks.Standardize(), networks.he_init_(network))


@torch.no_grad()
def accuracy(module: nn.Module, X: Tensor, y: Tensor) -> float:
    """Return the share of right guesses."""
    guesses = torch.cat([module(part).argmax(1) for part in X.split(1000)])
    return float((guesses == y).double().mean())


def main() -> None:
    """Train every network at every budget, and append what it reached and took."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("dataset")
    arguments.add_argument("network", nargs="+")
    arguments.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    arguments.add_argument("--method", choices=NETWORK_METHODS, default="auto")
    arguments.add_argument("--draws", type=int, default=1)
    arguments.add_argument("--rows", type=int, default=None)
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--validation", action="store_true")
    asked = arguments.parse_args()
    X, y, X_test, y_test = parts(asked.dataset, asked.rows, asked.validation)
    runs = product(range(asked.draws), asked.epsilon, asked.network)
    for _, epsilon, network in runs:
        module, begun = module_of(network, asked.plain), time.process_time()
        run = armijo.train(
            module,
            nn.CrossEntropyLoss(reduction="none"),
            (X, y),
            epsilon=epsilon,
            delta=1e-5,
            method=asked.method,
        )
        seconds = time.process_time() - begun
        row = {
            "dataset": asked.dataset,
            "network": network,
            "method": asked.method,
            "prepared": not asked.plain,
            "epsilon": epsilon,
            "rows": len(y),
            "measured_on": "validation" if asked.validation else "test",
            "accuracy": accuracy(module, X_test, y_test),
            "steps": len(run.records),
            "sampling_prob": round(run.method.sampling_prob, 5),
            "first_step": round(run.records[0].step_size, 3),
            "seconds": round(seconds),
        }
        new = not RESULTS.exists()
        pd.DataFrame([row]).to_csv(RESULTS, mode="a", header=new, index=False)


if __name__ == "__main__":
    main()
