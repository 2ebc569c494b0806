# SPDX-License-Identifier: Apache-2.0
"""Epsilon from the charges of a ledger alone, by other means than the accountant's.

Where every charge has a ``DpEvent``, ``dp-accounting`` composes them: its privacy loss
distributions, its Renyi accountant, or its exact Gaussian.  Otherwise the cited bounds
are evaluated by :mod:`armijo.accounting.independent_bounds`.  A run that went through a
filter is judged at the orders that its header fixed, never at a better one that was
chosen afterwards.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.independent_bounds import (
    LARGEST_ORDER,
    Array,
    NotKnown,
    delta_of,
    renyi,
)
from armijo.accounting.mechanisms import (
    Composed,
    ExponentialMechanism,
    Gaussian,
    PureDP,
    Repeated,
)
from armijo.accounting.nonprivate import NonPrivate
from armijo.accounting.objective_perturbation import (
    ApproximateMinima,
    ChaudhuriObjective,
    KiferObjective,
    ObjectivePerturbation,
)
from armijo.accounting.output_perturbation import PermutedMixture, WithOutputNoise
from armijo.accounting.selection import RepeatAndSelect
from armijo.accounting.subsampling import Subsampled

Described = Mapping[str, Any]
Counted = Sequence[tuple[Described, int]]
SECOND = "second implementation"

_MECHANISMS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(AboveThreshold, ApproximateMinima, ChaudhuriObjective, Composed, Gaussian),
        *(KiferObjective, ExponentialMechanism, NonPrivate, ObjectivePerturbation),
        *(PermutedMixture, PureDP, RepeatAndSelect, Repeated, Subsampled),
        WithOutputNoise,
    )
}


@dataclass(frozen=True)
class Recomputed:
    """What the charges of a ledger cost.

    Attributes
    ----------
    epsilon : float or None
        At the delta of the header; None where a charge could not be recomputed.
    by : str
        The way that was taken.
    unknown : tuple of str
        Names of mechanisms that could not be recomputed.
    """

    epsilon: float | None
    by: str
    unknown: tuple[str, ...] = ()


def rebuild(described: Described) -> Any:
    """Return the mechanism that a ledger describes.

    Raises
    ------
    NotKnown
        There is no such mechanism in this package.
    ValueError
        Its settings are not possible.

    Examples
    --------
    >>> rebuild({"mechanism": "PureDP", "epsilon": 0.5})
    PureDP(epsilon=0.5)
    """
    kind = _MECHANISMS.get(str(described.get("mechanism")))
    if kind is None:
        raise NotKnown(str(described.get("mechanism")))
    given = {name: _value(one) for name, one in described.items()}
    del given["mechanism"]
    names = {field.name for field in fields(kind)}
    if set(given) != names:
        raise ValueError(f"{kind.__name__} has the settings {sorted(given)}")
    return kind(**given)


def _value(value: Any) -> Any:
    """Rebuild nested mechanisms and tuples."""
    if isinstance(value, Mapping):
        return rebuild(value)
    return tuple(map(_value, value)) if isinstance(value, list) else value


def counted(described: Iterable[Described]) -> Counted:
    """Count equal charges together, whatever the order of their keys."""
    found: dict[str, tuple[Described, int]] = {}
    for one in described:
        key = json.dumps(one, sort_keys=True)
        found[key] = one, found.get(key, (one, 0))[1] + 1
    return tuple(found.values())


def filter_deltas(header: Mapping[str, Any]) -> Array:
    """Return the share of delta that each limit of a filter stands for.

    Solved from ``limit = epsilon - log(1 - 1/a) + (log(delta_a) + log(a)) / (a - 1)``.
    """
    a, limits = np.array(header["orders"], float), np.array(header["limits"], float)
    if a.shape != limits.shape or not a.size or np.any(a < 2):
        raise ValueError("orders and limits do not fit together")
    excess = limits - float(header["epsilon"]) + np.log1p(-1 / a)
    return np.exp((a - 1) * excess - np.log(a))


def recompute_filter(header: Mapping[str, Any], charges: Counted) -> Recomputed:
    """Return epsilon of an adaptive run at the orders that were fixed beforehand."""
    orders, deltas = np.array(header["orders"], float), filter_deltas(header)
    events = _events(charges)
    if events is not None:
        epsilons = []
        for order, delta in zip(orders, deltas, strict=True):
            accountant = RdpAccountant([int(order)])
            if not all(map(accountant.supports, events)):
                break
            for event, (_, count) in zip(events, charges, strict=True):
                accountant.compose(event, count)
            epsilons.append(float(accountant.get_epsilon(float(delta))))
        else:
            return Recomputed(min(epsilons), f"dp-accounting, RDP at {_named(orders)}")
    total = np.zeros(orders.shape) + sum(
        count * renyi(one, orders) for one, count in charges
    )
    slack = np.log1p(-1 / orders) - (np.log(deltas) + np.log(orders)) / (orders - 1)
    epsilon = max(float(np.min(total + slack)), 0.0)
    return Recomputed(epsilon, f"{SECOND}, RDP at {_named(orders)}")


def _named(orders: Array) -> str:
    """Name the orders."""
    return "order " + ", ".join(f"{order:g}" for order in orders)


def recompute_planned(header: Mapping[str, Any], charges: Counted) -> Recomputed:
    """Return epsilon of charges that were fixed in advance."""
    delta, claimed = float(header["delta"]), float(header["epsilon"])
    name = str(header["accountant"])
    if not charges:
        return Recomputed(0.0, "no charge")
    events = _events(charges)
    if name == "planned-profile":
        return _by_profile(charges, events, delta)
    if events is not None and name == "planned-pld":
        width = max(min(1e-4, claimed * 1e-4), 1e-7)
        by_loss = PLDAccountant(value_discretization_interval=width)
        if all(map(by_loss.supports, events)):
            return Recomputed(_composed(by_loss, events, charges, delta), _PLD)
    orders = _orders(claimed, delta)
    if events is not None and all(map(RdpAccountant(orders).supports, events)):
        by_renyi = RdpAccountant(orders)
        return Recomputed(
            _composed(by_renyi, events, charges, delta), "dp-accounting, RDP"
        )

    def epsilon_at(a: Array) -> Array:
        total = sum(count * renyi(one, a) for one, count in charges)
        slack = np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
        return np.maximum(total + slack, 0.0)

    coarse = np.array(orders, float)
    at = int(np.argmin(epsilon_at(coarse)))
    low, high = coarse[max(at - 1, 0)], coarse[min(at + 1, coarse.size - 1)]
    near = np.unique(np.rint(np.linspace(low, high, 32)))
    return Recomputed(float(np.min(epsilon_at(near))), f"{SECOND}, RDP")


_PLD = "dp-accounting, privacy loss distributions"


def _composed(
    accountant: Any, events: Sequence[dpa.DpEvent], charges: Counted, delta: float
) -> float:
    """Return epsilon of all charges by an accountant of dp-accounting."""
    for event, (_, count) in zip(events, charges, strict=True):
        accountant.compose(event, count)
    return float(accountant.get_epsilon(delta))


def _events(charges: Counted) -> list[dpa.DpEvent] | None:
    """Return the event of each charge, None if one has none."""
    try:
        events = [rebuild(described).dp_event() for described, _ in charges]
    except NotKnown:
        return None
    return None if None in events else events


def _orders(epsilon: float, delta: float) -> list[int]:
    """Return integer orders up to well past the best one for a budget."""
    best = -4 * math.log(delta) / epsilon
    top = min(max(256.0, best), float(LARGEST_ORDER))
    grid = np.concatenate([np.arange(2, 65), np.rint(np.geomspace(64, top, 120))])
    return [int(order) for order in np.unique(grid)]


def _by_profile(
    charges: Counted, events: list[dpa.DpEvent] | None, delta: float
) -> Recomputed:
    """Return epsilon of Gaussians on all rows, or of one release with a profile."""
    kinds = dpa.GaussianDpEvent
    if events is not None and all(isinstance(event, kinds) for event in events):
        precision = math.fsum(
            count / event.noise_multiplier**2
            for event, (_, count) in zip(events, charges, strict=True)
        )
        sigma = 1 / math.sqrt(precision)
        epsilon = float(dpa.get_epsilon_gaussian(sigma, delta))
        return Recomputed(epsilon, "dp-accounting, exact Gaussian")
    (described, count), *more = charges
    if more or count != 1:
        raise ValueError("a profile covers one release, and there are more")
    low, high = 0.0, 1.0
    while delta_of(described, high) > delta:
        low, high = high, 2 * high
        if high > 1e6:
            return Recomputed(math.inf, f"{SECOND}, profile")
    for _ in range(60):
        middle = (low + high) / 2
        if delta_of(described, middle) <= delta:
            high = middle
        else:
            low = middle
    return Recomputed(high, f"{SECOND}, profile")
