# SPDX-License-Identifier: Apache-2.0
"""Stand-ins at the gate: accountants, bits and arrays that write down their use."""

from typing import Any

import numpy as np

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant, PrivacyFilter
from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.mechanisms import (
    ExponentialMechanism,
    Gaussian,
    Mechanism,
    PureDP,
)
from armijo.data.fixed_point import STEPS
from armijo.data.gate import BatchPlan, PrivateBatch, PrivateDataset
from armijo.data.query import BoundedQuery
from armijo.randomness import BitSource, Randomness, RowBits
from tests.data.lattice_doubles import on_lattice

BUDGET = Budget(epsilon=1.0, delta=1e-6)
GRADIENT = Gaussian(noise_scale=8.0)
SEARCH = AboveThreshold.laplace(0.1, 5)
CHOICE = ExponentialMechanism(0.1)
PERTURBATION = PureDP(0.1)
X3 = on_lattice([[0.3, 0.1], [0.2, -0.4], [-0.5, 0.6]])


class FreeAccountant(Accountant):
    """Accepts everything: laws are tested on runs that no budget would pay for."""

    def __init__(self, relation: Neighboring = Neighboring.ADD_REMOVE) -> None:
        super().__init__(
            BUDGET,
            relation=relation,
            limits=np.ones(1),
            name="free",
            insecure_deterministic=True,
        )

    def _cost(self, mechanism: Mechanism) -> np.ndarray:
        return np.ones(1)

    def _fits(self, total: np.ndarray) -> bool:
        return True


class SpyAccountant(PrivacyFilter):
    """Writes down when it is charged."""

    def __init__(self, events: list[str], budget: Budget = BUDGET, **more: Any) -> None:
        super().__init__(budget, **more)
        self.events = events

    def charge(self, mechanism: Mechanism, **more: Any) -> int:
        index = super().charge(mechanism, **more)
        self.events.append("charge")
        return index


class SpyRandomness(Randomness):
    """Writes down which stream is drawn from."""

    def __init__(self, events: list[str]) -> None:
        super().__init__()
        self.events = events

    def stream(self, purpose: str) -> BitSource:
        inner, events = super().stream(purpose), self.events

        class SpyBits:
            def uint64(self, n: int) -> np.ndarray:
                events.append(purpose)
                return inner.uint64(n)

            def fill(self, words: np.ndarray) -> None:
                words[:] = self.uint64(words.size)

            def uint16(self, n: int) -> np.ndarray:
                events.append(purpose)
                return inner.uint16(n)

        return SpyBits()

    def row_bits(self) -> RowBits:
        self.events.append("sampling")
        return super().row_bits()


class SpyArray(np.ndarray):
    """Writes down when its values are read."""

    events: list[str]

    def __array_finalize__(self, parent: object) -> None:
        self.events = getattr(parent, "events", [])

    def __getitem__(self, key: Any) -> Any:
        self.events.append("rows")
        return super().__getitem__(key)

    def take(self, *key: Any, **more: Any) -> Any:
        self.events.append("rows")
        return super().take(*key, **more)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **more: Any):
        self.events.append("rows")
        plain = [np.asarray(value) for value in inputs]
        return getattr(ufunc, method)(*plain, **more)


def spied(values: np.ndarray, events: list[str]) -> SpyArray:
    array = values.view(SpyArray)
    array.events = events
    return array


def seeded(X: Any, y: Any = None, *, seed: int = 0, **more: Any) -> PrivateDataset:
    more = {"n_rows": 3, "accountant": FreeAccountant()} | more
    randomness = Randomness(seed=seed, insecure_deterministic=True)
    return PrivateDataset(X, y, randomness=randomness, **more)


def opened(*mechanisms: Mechanism, X: Any = X3, **more: Any) -> PrivateBatch:
    return seeded(X, **more).open(BatchPlan(mechanisms=mechanisms))


def features(bound: float = 1.0) -> BoundedQuery:
    return BoundedQuery(contributions=lambda rows: rows.X, bound=bound)


def level(value: float, bound: float = 1.0) -> BoundedQuery:
    """A search query whose sum, divided by its bound, is ``value``."""
    return BoundedQuery(
        contributions=lambda rows: rows.X[:, 0] * bound,
        bound=bound,
        offset=(value - float(X3[:, 0].sum())) * bound,
    )


def steps_of(values: np.ndarray, bound: float = 1.0) -> list[int]:
    steps = values * STEPS / bound
    assert np.all(steps == np.rint(steps)), "off the lattice"
    return [int(step) for step in steps]
