# SPDX-License-Identifier: Apache-2.0
"""Tiny networks and what stands in for a user: data, losses, spies."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from armijo import Trainer
from armijo.accounting.budget import Budget
from armijo.methods.base import Method, Problem
from armijo.registry import NETWORK, make_method, network_method

BUDGET = Budget(epsilon=2.0, delta=1e-5)
ROWS, FEATURES, CLASSES = 40, 4, 3
STEPS, RATE = 6, 0.3
CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")


def examples(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """Return inputs and classes, the same each time."""
    bits = torch.Generator().manual_seed(3)
    X = torch.randn(ROWS, FEATURES, generator=bits, dtype=torch.float64)
    weights = torch.randn(FEATURES, CLASSES, generator=bits, dtype=torch.float64)
    return X.to(dtype), (X @ weights).argmax(dim=1)


def network(dtype: torch.dtype = torch.float32, *, dropout: float = 0.0) -> nn.Module:
    """Return a network of two layers, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return nn.Sequential(
            nn.Linear(FEATURES, 5),
            nn.Tanh(),
            *([nn.Dropout(dropout)] if dropout else []),
            nn.Linear(5, CLASSES),
        ).to(dtype)


def flat(module: nn.Module) -> Tensor:
    """Return all parameters, frozen ones too."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


SAMPLED = ("auto", "auto-search", "blsgd", "sgd", "adam", "hyfree", "nonprivate")
"""The methods for networks that sample batches, each once."""


def prepared(module: nn.Module | None = None, **more: Any) -> Trainer:
    """Return a training of the tiny network; ``more`` replaces its arguments."""
    given: dict[str, Any] = {
        "loss": CROSS_ENTROPY,
        "dataset": examples(),
        "budget": BUDGET,
        "steps": STEPS,
        "sampling_prob": RATE,
        "n_rows": ROWS,
    }
    given |= more
    if options := given.pop("options", None):
        given["method"] = make_method(given["method"], options, table=NETWORK)
    if isinstance(given["dataset"], Pairs):
        given.setdefault("example", given["dataset"].example())
    return Trainer(module or network(), **given)


class Pairs(Dataset):
    """A map-style dataset that writes down which examples are read."""

    def __init__(self, X: Any, y: Tensor, events: list[Any] | None = None) -> None:
        self.X, self.y = X, y
        self.length = len(y)
        self.events: list[Any] = [] if events is None else events

    def __len__(self) -> int:
        return self.length

    def example(self) -> Any:
        """Return zeros of the shapes that are public."""
        like = Pairs(self.X, self.y)[0]
        return (
            tuple(map(torch.zeros_like, like[0]))
            if isinstance(like[0], tuple)
            else torch.zeros_like(like[0]),
            torch.zeros_like(like[1]),
        )

    def __getitem__(self, number: int) -> Any:
        self.events.append(number)
        if isinstance(self.X, tuple):
            return tuple(x[number] for x in self.X), self.y[number]
        return self.X[number], self.y[number]


class TwoInputs(nn.Module):
    """A module of two inputs, one of them an index."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(6, 5)
        self.linear = nn.Linear(FEATURES, 5)
        self.out = nn.Linear(5, CLASSES)

    def forward(self, X: Tensor, word: Tensor) -> Tensor:
        return self.out(torch.tanh(self.linear(X) + self.words(word)))


def two_inputs() -> TwoInputs:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(8)
        return TwoInputs()


def words() -> Tensor:
    return torch.arange(ROWS) % 6


def calibrated_method(
    name: str | Method[Any],
    budget: Budget,
    *,
    sampling_prob: float,
    steps: int,
    options: Mapping[str, Any] | None = None,
) -> Method[Any]:
    """Return a method for networks with its noise."""
    chosen = make_method(name, options, table=NETWORK)
    sizes = {"sampling_prob": sampling_prob, "steps": steps}
    method, _ = network_method(chosen, budget, n_rows=ROWS, **sizes)
    return method.calibrate(budget, Problem(n_rows=ROWS))
