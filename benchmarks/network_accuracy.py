# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the paper's networks trained by ``armijo.train`` with nothing set.

    python -m benchmarks.network_accuracy fashion-mnist cnn_small --epsilon 1 3

Inputs are standardized and weights drawn by He's rule, unless ``--plain``.  Each run is
a private one, without a seed, and is appended to ``docs/results/networks.csv``:
accuracy on the publisher's test images, or with ``--validation`` on the last sixth of
the training images, which the run then does not have.  Seconds are processor time of
the whole training, which other work on the machine does not change much.

``--method rule-and-search`` is the private search that starts from what the public rule
says: its steps, batches and first step size.  Networks for color images are the same
with three channels.
"""

import argparse
import time
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

import armijo
from armijo import Budget, networks
from armijo.methods.auto_network import AutoNetwork
from armijo.methods.base import Method, Problem
from armijo.methods.searched_sgd import SearchedSGD
from armijo.objectives.ghost.params import flat_parameters
from armijo.registry import NETWORK_METHODS
from armijo_reproduction import datasets

RESULTS = Path("docs", "results", "networks.csv")
BOTH = "rule-and-search"


def parts(name: str, rows: int | None, validation: bool) -> tuple[Tensor, ...]:
    """Return images and labels to train with and to measure on."""
    train, test = datasets.load(name).published_split()
    X, y = torch.from_numpy(train.X), torch.from_numpy(train.y)
    if validation:
        kept = len(y) * 5 // 6
        return X[:kept][:rows], y[:kept][:rows], X[kept:], y[kept:]
    return X[:rows], y[:rows], torch.from_numpy(test.X), torch.from_numpy(test.y)


def module_of(name: str, shape: torch.Size, plain: bool) -> nn.Module:
    """Return a network with fresh weights for images of a shape."""
    network: nn.Module = getattr(networks, name)()
    if shape[0] == 3 and name != "cnn_cifar":
        network = in_color(network, shape)
    if plain:
        return network
    return nn.Sequential(networks.Standardize(), networks.he_init_(network))


def in_color(network: nn.Module, shape: torch.Size) -> nn.Module:
    """Return a network whose first layers take three channels of more pixels."""
    layers = list(network.children())
    with torch.no_grad():
        x = torch.zeros(1, *shape)
        for position, layer in enumerate(layers):
            if isinstance(layer, nn.Conv2d) and layer.in_channels == 1:
                layers[position] = nn.Conv2d(3, layer.out_channels, layer.kernel_size)
            elif isinstance(layer, nn.Linear) and layer.in_features != x.shape[1]:
                layers[position] = nn.Linear(x.shape[1], layer.out_features)
            x = layers[position](x)
    return nn.Sequential(*layers)


def method_of(
    name: str, budget: Budget, module: nn.Module, n_rows: int
) -> str | Method[Any]:
    """Return a method by name, or the search that starts from the rule."""
    if name != BOTH:
        return name
    rule = AutoNetwork().calibrate(budget, Problem(n_rows=n_rows))
    return SearchedSGD(
        steps=rule.steps,
        sampling_prob=rule.sampling_prob,
        step_size=rule.init(flat_parameters(module)).step_size,
    )


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
    known = (*NETWORK_METHODS, BOTH)
    arguments.add_argument("--method", choices=known, nargs="+", default=["auto"])
    arguments.add_argument("--draws", type=int, default=1)
    arguments.add_argument("--rows", type=int, default=None)
    arguments.add_argument("--plain", action="store_true")
    arguments.add_argument("--validation", action="store_true")
    asked = arguments.parse_args()
    X, y, X_test, y_test = parts(asked.dataset, asked.rows, asked.validation)
    runs = product(range(asked.draws), asked.epsilon, asked.network, asked.method)
    for _, epsilon, network, name in runs:
        module = module_of(network, X.shape[1:], asked.plain)
        budget, begun = Budget(epsilon=epsilon, delta=1e-5), time.process_time()
        run = armijo.train(
            module,
            nn.CrossEntropyLoss(reduction="none"),
            (X, y),
            budget,
            method=method_of(name, budget, module, len(y)),
        )
        seconds = time.process_time() - begun
        row = {
            "dataset": asked.dataset,
            "network": network,
            "method": name,
            "prepared": not asked.plain,
            "epsilon": epsilon,
            "rows": len(y),
            "measured_on": "validation" if asked.validation else "test",
            "accuracy": round(accuracy(module, X_test, y_test), 4),
            "steps": len(run.records),
            "sampling_prob": round(run.method.sampling_prob, 5),
            "first_step": round(run.records[0].step_size, 3),
            "seconds": round(seconds),
        }
        new = not RESULTS.exists()
        pd.DataFrame([row]).to_csv(RESULTS, mode="a", header=new, index=False)


if __name__ == "__main__":
    main()
