# SPDX-License-Identifier: Apache-2.0
"""Verify a finished ledger: its chain, its end, its plan, and epsilon from its charges.

Epsilon is recomputed from the charges alone, by other means than the accountant's.
Where every charge has a ``DpEvent``, ``dp-accounting`` composes them: its privacy loss
distributions, its Renyi accountant, or its exact Gaussian.  Otherwise the cited bounds
are evaluated by :mod:`armijo.accounting.independent_bounds`.  A run that went through a
filter is judged at the orders that its header fixed, never at a better one that was
chosen afterwards.

The files of a run are compared with the closing line in :mod:`armijo.report.verify`.
There is no signature: whoever rewrites every file consistently, with charges that do
cost what is claimed, is not seen (docs/ledger.md).
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from armijo.accounting import (  # noqa: F401 (their mechanisms are in KINDS)
    above_threshold,
    perturbation,
)
from armijo.accounting.budget import EXACT_SAMPLER, Neighboring
from armijo.accounting.independent_bounds import (
    LARGEST_ORDER,
    Array,
    Described,
    NotKnown,
    delta_of,
    renyi,
)
from armijo.accounting.ledger import Charge, LedgerView, read_ledger
from armijo.accounting.mechanisms import KINDS, description_key
from armijo.errors import LedgerError

Counted = Sequence[tuple[Described, int]]
SECOND = "second implementation"


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
    kind: Any = KINDS.get(str(described.get("mechanism")))
    if kind is None:
        raise NotKnown(str(described.get("mechanism")))
    given = {name: _value(one) for name, one in described.items()}
    del given["mechanism"]
    names = {field.name for field in fields(kind)}
    if set(given) != names:
        raise ValueError(f"{kind.__name__} has the settings {sorted(given)}")
    return kind(**given)


def _value(value: Any) -> Any:
    if isinstance(value, Mapping):
        return rebuild(value)
    return tuple(map(_value, value)) if isinstance(value, list) else value


def counted(described: Iterable[Described]) -> Counted:
    """Count equal charges together, whatever the order of their keys."""
    found: dict[str, tuple[Described, int]] = {}
    for one in described:
        key = description_key(one)
        found[key] = one, found.get(key, (one, 0))[1] + 1
    return tuple(found.values())


def _filter_order(header: Mapping[str, Any]) -> tuple[int, float]:
    """Return the order of a filter, and the delta that its limit stands for.

    Solved from ``limit = epsilon - log(1 - 1/a) + (log(delta) + log(a)) / (a - 1)``.
    """
    (a,), (limit,) = header["orders"], header["limits"]
    if a < 2 or a != int(a):
        raise ValueError(f"the order is {a!r}")
    excess = limit - float(header["epsilon"]) + math.log1p(-1 / a)
    return int(a), math.exp((a - 1) * excess - math.log(a))


def recompute_filter(header: Mapping[str, Any], charges: Counted) -> Recomputed:
    """Return epsilon of an adaptive run at the order that was fixed beforehand."""
    order, delta = _filter_order(header)
    by, epsilon = "dp-accounting", _composed(RdpAccountant([order]), charges, delta)
    if epsilon is None:
        at = np.array([float(order)])
        by, epsilon = SECOND, float(_second(charges, at, delta)[0])
    return Recomputed(epsilon, f"{by}, RDP at order {order:g}")


def recompute_planned(header: Mapping[str, Any], charges: Counted) -> Recomputed:
    """Return epsilon of charges that were fixed in advance."""
    delta, claimed = float(header["delta"]), float(header["epsilon"])
    name = str(header["accountant"])
    if not charges:
        return Recomputed(0.0, "no charge")
    if name == "planned-profile":
        return _by_profile(charges, delta)
    if name == "planned-pld":
        width = max(min(1e-4, claimed * 1e-4), 1e-7)
        by_loss = PLDAccountant(value_discretization_interval=width)
        epsilon = _composed(by_loss, charges, delta)
        if epsilon is not None:
            return Recomputed(epsilon, "dp-accounting, privacy loss distributions")
    orders = _orders(claimed, delta)
    epsilon = _composed(RdpAccountant(orders), charges, delta)
    if epsilon is not None:
        return Recomputed(epsilon, "dp-accounting, RDP")
    coarse = np.array(orders, float)
    at = int(np.argmin(_second(charges, coarse, delta)))
    low, high = coarse[max(at - 1, 0)], coarse[min(at + 1, coarse.size - 1)]
    near = np.unique(np.rint(np.linspace(low, high, 32)))
    return Recomputed(float(np.min(_second(charges, near, delta))), f"{SECOND}, RDP")


def _second(charges: Counted, a: Array, delta: float) -> Array:
    """Return epsilon at each order by the second implementation."""
    total = sum(count * renyi(one, a) for one, count in charges)
    slack = np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return np.maximum(total + slack, 0.0)


def _composed(accountant: Any, charges: Counted, delta: float) -> float | None:
    """Return epsilon by dp-accounting, None where it does not know a charge."""
    events = _events(charges)
    if events is None or not all(map(accountant.supports, events)):
        return None
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


def _by_profile(charges: Counted, delta: float) -> Recomputed:
    """Return epsilon of Gaussians on all rows, or of one release with a profile."""
    events = _events(charges)
    if events and all(isinstance(event, dpa.GaussianDpEvent) for event in events):
        precision = math.fsum(
            count / event.noise_multiplier**2
            for event, (_, count) in zip(events, charges, strict=True)
        )
        epsilon = dpa.get_epsilon_gaussian(1 / math.sqrt(precision), delta)
        return Recomputed(float(epsilon), "dp-accounting, exact Gaussian")
    (described, count), *more = charges
    if more or count != 1:
        raise ValueError("a profile covers one release, and there are more")
    low, high = 0.0, 1.0  # not by the solver of the accountants
    while delta_of(described, high) > delta:
        low, high = high, 2 * high
        if high > 1e6:
            return Recomputed(math.inf, f"{SECOND}, profile")
    for _ in range(60):
        middle = (low + high) / 2
        keeps = delta_of(described, middle) <= delta
        low, high = (low, middle) if keeps else (middle, high)
    return Recomputed(high, f"{SECOND}, profile")


TOLERANCE = 1e-3
"""Relative: claimed epsilon and recorded costs may differ so much from recomputed ones.

Covers the grid of loss distributions and suprema that are searched on other grids."""

_UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


@dataclass(frozen=True)
class Fault:
    """What is wrong, and in which file."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


@dataclass(frozen=True)
class Verification:
    """What could be verified of a run.

    Attributes
    ----------
    ledger : str
        The ledger.
    view : LedgerView or None
        What it says; None if it cannot be read.
    faults : tuple of Fault
        Everything that is wrong.
    recomputed : Recomputed or None
        Epsilon from the charges alone.
    finished : bool
        Whether the ledger is closed; a run that is not is neither right nor wrong.
    """

    ledger: str
    view: LedgerView | None
    faults: tuple[Fault, ...] = ()
    recomputed: Recomputed | None = None
    finished: bool = True

    @property
    def verified(self) -> bool:
        """Whether the run is finished and nothing is wrong."""
        return self.finished and not self.faults

    @property
    def state(self) -> str:
        """One word for the outcome."""
        if self.faults:
            return "failed"
        return "verified" if self.finished else "unfinished"

    @property
    def verdict(self) -> str:
        """Say the outcome in one sentence."""
        if self.faults:
            return f"FAILED: {self.faults[0]}"
        if not self.finished or self.view is None:
            return (
                "not verified: the run is unfinished, its ledger is not closed; finish "
                "it, then verify"
            )
        text = f"verified: {len(self.view.charges)} charges"
        if not self.view.header.get("guarantee"):
            text += ", no guarantee is claimed"
        found = self.recomputed
        if found is None:
            return f"{text}; the accountant proves no epsilon to recompute"
        if found.epsilon is None:
            return f"{text}; epsilon was NOT recomputed: {', '.join(found.unknown)}"
        return f"{text}; epsilon {found.epsilon:.6g} recomputed by {found.by}"

    def to_dict(self) -> dict[str, object]:
        """Return one JSON object."""
        header = {} if self.view is None else self.view.header
        found = self.recomputed or Recomputed(None, "")
        known = found.epsilon is not None and math.isfinite(found.epsilon)
        return {
            "verified": self.verified,
            "state": self.state,
            "verdict": self.verdict,
            "ledger": self.ledger,
            "epsilon": header.get("epsilon"),
            "delta": header.get("delta"),
            "relation": header.get("relation"),
            "guarantee": header.get("guarantee"),
            "charges": None if self.view is None else len(self.view.charges),
            "epsilon_recomputed": found.epsilon if known else None,
            "recomputed_by": found.by or None,
            "not_recomputed": list(found.unknown),
            "tolerance": TOLERANCE,
            "faults": [{"file": one.file, "fault": one.what} for one in self.faults],
        }


def verify_ledger(path: str | os.PathLike[str]) -> Verification:
    """Verify a ledger by itself.

    Parameters
    ----------
    path : path
        The ledger, closed or not.

    Returns
    -------
    Verification
        With a fault for each thing that is wrong; nothing is raised for a ledger that
        is damaged, of another version or not there.
    """
    name = os.fspath(path)
    try:
        view = read_ledger(path)
    except LedgerError as error:
        return Verification(str(name), None, (Fault(str(name), str(error)),))
    checks = _Checks(view)
    try:
        checks.run()
    except _UNREADABLE as error:
        checks.faults.append(f"its header or charges make no sense ({error!r:.200})")
    return Verification(
        str(name),
        view,
        tuple(Fault(str(name), what) for what in checks.faults),
        checks.recomputed,
        finished=view.closing is not None,
    )


class _Checks:
    """The checks of one ledger, and what they found."""

    def __init__(self, view: LedgerView) -> None:
        self._view = view
        self._header: Mapping[str, Any] = view.header
        self.faults: list[str] = []
        self.recomputed: Recomputed | None = None

    def run(self) -> None:
        self._check_claim()
        name = str(self._header["accountant"])
        if name.startswith("planned-"):
            self._check_plan()
        elif name.startswith("filter-"):
            self._check_filter()
        elif self._header["guarantee"]:
            self.faults.append(f"accountant {name!r} proves nothing, yet it is claimed")
        if self.recomputed is not None:
            self._check_epsilon("the charges cost", self.recomputed.epsilon)

    def _check_claim(self) -> None:
        header = self._header
        epsilon, delta = float(header["epsilon"]), float(header["delta"])
        if not (0 < epsilon < math.inf and 0 < delta < 1):
            raise ValueError(f"epsilon {epsilon!r} at delta {delta!r}")
        relation = Neighboring(str(header["relation"]))
        if bool(header["guarantee"]) != (not header["broken_premises"]):
            self.faults.append("it claims a guarantee and reasons why there is none")
        if header["guarantee"] and header["sampler"] != EXACT_SAMPLER:
            self.faults.append(
                f"expected the sampler {EXACT_SAMPLER!r}, found {header['sampler']!r}"
            )
        described = [one.mechanism for one in self._view.charges]
        if relation is Neighboring.REPLACE_ONE and any(map(_is_sampled, described)):
            self.faults.append(
                "Poisson sampling is amplified under the replace-one relation, for "
                "which that is not proved"
            )

    def _check_plan(self) -> None:
        plan = [(one, int(count)) for one, count in self._header["plan"]]
        allowed: Counter[str] = Counter()
        for one, count in plan:
            allowed[description_key(one)] += count
        whole = sum(allowed.values())
        if self._header["limits"] != [float(whole)]:
            self.faults.append(
                f"expected the plan's {whole} accesses as the limit, found "
                f"{self._header['limits']}"
            )
        made = counted(one.mechanism for one in self._view.charges)
        for one, count in made:
            if count > allowed[description_key(one)]:
                self.faults.append(
                    f"expected at most {allowed[description_key(one)]} charges of "
                    f"{description_key(one):.120}, as planned, found {count}"
                )
        for charge in self._view.charges:
            if charge.cost != (1.0,):
                self.faults.append(
                    f"expected cost 1 of the planned charge {charge.index}, found "
                    f"{charge.cost}"
                )
        known = self._recompute(recompute_planned, made)
        if known and whole != len(self._view.charges):
            epsilon = recompute_planned(self._header, plan).epsilon
            self._check_epsilon("the plan costs", epsilon)

    def _check_filter(self) -> None:
        order, delta = _filter_order(self._header)
        if delta > float(self._header["delta"]) * (1 + 1e-6):
            self.faults.append(
                "the limits do not follow from epsilon and delta of the header"
            )
        spent, limits = list(self._view.spent or (0.0,)), self._header["limits"]
        if not (len(spent) == 1 and spent[0] <= limits[0]):
            self.faults.append(f"the charges sum to {spent}, above the limits {limits}")
        if order > LARGEST_ORDER:
            self.recomputed = Recomputed(None, "nothing", ("orders that large",))
            return
        made = counted(one.mechanism for one in self._view.charges)
        if self._recompute(recompute_filter, made):
            self._check_costs(np.array([float(order)]))

    def _check_costs(self, orders: Any) -> None:
        """Compare the recorded cost of each charge with that of its mechanism."""
        known: dict[str, Any] = {}
        for charge in self._view.charges:
            key = description_key(charge.mechanism)
            if key not in known:
                known[key] = renyi(charge.mechanism, orders)
            if not _close(charge, known[key]):
                self.faults.append(
                    f"expected {known[key].tolist()} as the cost of charge "
                    f"{charge.index}, by its mechanism, found {list(charge.cost)}"
                )
                return

    def _recompute(self, by: Callable[..., Recomputed], made: Counted) -> bool:
        try:
            self.recomputed = by(self._header, made)
        except NotKnown as error:
            self.recomputed = Recomputed(None, "nothing", (str(error),))
        return self.recomputed.epsilon is not None

    def _check_epsilon(self, what: str, epsilon: float | None) -> None:
        claimed = float(self._header["epsilon"])
        if epsilon is not None and not epsilon <= claimed * (1 + TOLERANCE):
            self.faults.append(
                f"{what} epsilon {epsilon:.6g} at delta {self._header['delta']:g}, "
                f"claimed is {claimed:g} (tolerance {TOLERANCE:g})"
            )


def _is_sampled(described: Any) -> bool:
    """Say whether rows are sampled somewhere in a described mechanism."""
    if isinstance(described, list):
        return any(map(_is_sampled, described))
    if not isinstance(described, Mapping):
        return False
    own = (
        described.get("mechanism") == "Subsampled"
        and described.get("sampling_prob") != 1
    )
    return own or any(map(_is_sampled, described.values()))


def _close(charge: Charge, expected: Any) -> bool:
    found = np.array(charge.cost)
    return found.shape == expected.shape and bool(
        np.all(np.abs(found - expected) <= TOLERANCE * expected)
    )
