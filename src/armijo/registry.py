# SPDX-License-Identifier: Apache-2.0
"""Methods by name, for linear models and for networks, with the options they take."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from armijo import _validate
from armijo.accounting.budget import Budget
from armijo.baselines.agd import AGD
from armijo.baselines.hyfree import HyFree
from armijo.baselines.perturbation import (
    AMP,
    ObjPert,
    ObjPertKST,
    ObjPertPure,
    OutpertGD,
    OutpertRSGD,
)
from armijo.baselines.privgene import PrivGene
from armijo.baselines.trivial import Majority, NonPrivateAdam, NonPrivateMinimum
from armijo.baselines.tuned import TunedSGD
from armijo.methods.auto import Auto
from armijo.methods.auto_network import AutoNetwork
from armijo.methods.base import EPOCHS, Method, Problem
from armijo.methods.line_search import BLGD, BLSGD
from armijo.methods.searched_sgd import SearchedSGD
from armijo.methods.sgd import DPSGD, DPAdam


@dataclass(frozen=True)
class Entry:
    """A method of the table.

    Attributes
    ----------
    kind : type
        Its class, whose fields are its options.
    summary : str
        What it is, in a line.
    defaults : mapping
        Options that have another default under this name.
    """

    kind: type[Method[Any]]
    summary: str
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> set[str]:
        """The names of the options that it takes."""
        return self.kind.options()


LINEAR: dict[str, Entry] = {
    "auto": Entry(
        Auto,
        "nothing to set: preconditioned steps by a private three-point search",
    ),
    "blsgd": Entry(
        BLSGD, "DP-BLSGD: noisy gradients, step sizes by a private Armijo search"
    ),
    "blsgd-ac": Entry(
        BLSGD,
        "the same with clips that shrink when gradients disagree",
        {"clip_decay": 0.05},
    ),
    "blgd": Entry(
        BLGD, "DP-BLGD: all rows each time; a failed search buys a better gradient"
    ),
    "agd": Entry(
        AGD, "DP-AGD (Lee and Kifer 2018): private choice from a grid of steps"
    ),
    "sgd": Entry(DPSGD, "DP-SGD (Abadi et al. 2016) with a given step size"),
    "adam": Entry(DPAdam, "DP-Adam: the same gradients, rescaled"),
    "outpert-rsgd": Entry(
        OutpertRSGD,
        "permuted SGD, noise on its average (Chen, Lee and Kifer 2019)",
    ),
    "outpert-gd": Entry(
        OutpertGD, "gradient descent, noise on its end (Zhang et al. 2017)"
    ),
    "objpert": Entry(
        ObjPert, "objective perturbation, tight analysis (Redberg et al. 2023)"
    ),
    "objpert-kst": Entry(
        ObjPertKST, "objective perturbation (Kifer, Smith and Thakurta 2012)"
    ),
    "objpert-pure": Entry(
        ObjPertPure,
        "objective perturbation, delta = 0 (Chaudhuri et al. 2011)",
    ),
    "amp": Entry(
        AMP, "objective perturbation, approximate minima (Iyengar et al. 2019)"
    ),
    "privgene": Entry(PrivGene, "private genetic algorithm (Zhang et al. 2013)"),
    "hyfree": Entry(HyFree, "HyFreeDP (Liu and Bu 2025): steps from privatized losses"),
    "sgd-tuned": Entry(
        TunedSGD,
        "DP-SGD tuned by private selection (Papernot and Steinke 2022)",
    ),
    "majority": Entry(Majority, "the most frequent class, chosen privately"),
    "nonprivate": Entry(
        NonPrivateMinimum, "L-BFGS without privacy: an upper bound, no guarantee"
    ),
}
"""The methods for linear models."""

NETWORK: dict[str, Entry] = {
    **{name: entry for name, entry in LINEAR.items() if entry.kind.networks},
    "auto": Entry(
        AutoNetwork, "nothing to set: steps, batches and step size from the budget"
    ),
    "auto-search": Entry(
        SearchedSGD, "nothing to set: the step follows a private three-point search"
    ),
    "nonprivate": Entry(
        NonPrivateAdam, "Adam without noise: an upper bound, no guarantee"
    ),
}
"""The methods for networks: all that need no linear model, and three of their own."""

METHODS = tuple(LINEAR)
"""Names that ``method=`` takes for linear models."""

NETWORK_METHODS = tuple(NETWORK)
"""Names that :func:`armijo.train` takes."""


def describe_methods() -> list[dict[str, Any]]:
    """Return name, summary and parameters of every method, as JSON values."""
    return [
        {
            "name": name,
            "summary": entry.summary,
            "parameters": sorted(entry.options),
        }
        for name, entry in LINEAR.items()
    ]


def make_method(
    method: str | Method[Any],
    asked: Mapping[str, Any] | None = None,
    *,
    table: Mapping[str, Entry] = LINEAR,
) -> Method[Any]:
    """Return a method by name with the options that were asked for.

    Parameters
    ----------
    method : str or Method
        A name of the table, or a method, which has its options already.
    asked : mapping or None
        Options by name; what is left out has the method's own default.
    table : mapping
        :data:`LINEAR` or :data:`NETWORK`.

    Raises
    ------
    ValueError
        For an option that the method does not take, by name.

    Examples
    --------
    >>> make_method("sgd", {"steps": 20}).steps
    20
    """
    asked = asked or {}
    if isinstance(method, Method):
        name = type(method).__name__
        if asked:
            raise ValueError(
                f"Expected no options beside method={name}(...), got "
                f"{', '.join(sorted(asked))}; give them to {name}. Nothing was spent."
            )
        return method
    _validate.choice(tuple(table), method=method)
    entry = table[method]
    foreign = sorted(asked.keys() - entry.options)
    if foreign:
        raise ValueError(
            f"Method {method!r} does not take {', '.join(foreign)}; it takes "
            f"{', '.join(sorted(entry.options)) or 'no parameters'}. Nothing was spent."
        )
    return entry.kind(**{**entry.defaults, **asked})


def parameters_of(method: str) -> set[str]:
    """Return the names of the options that a method takes."""
    return LINEAR[method].options


def network_method(
    method: str | Method[Any],
    budget: Budget,
    *,
    n_rows: int,
    sampling_prob: float | None = None,
    steps: int | None = None,
) -> tuple[Method[Any], int]:
    """Return a method for networks, by name or a given one, and its number of batches.

    A given ``sampling_prob`` or ``steps`` takes the place of the method's own.

    >>> network_method("sgd", Budget(epsilon=1.0, delta=1e-5), n_rows=60_000)[1]
    1000
    """
    chosen = make_method(method, table=NETWORK)
    takes = chosen.options()
    if sampling_prob is not None:
        _validate.sampling_prob(sampling_prob=sampling_prob)
        if sampling_prob != 1 and "sampling_prob" not in takes:
            raise ValueError(
                f"Expected sampling_prob=1 or None with {type(chosen).__name__}, which "
                f"uses all rows each time, got {sampling_prob!r}. Nothing was spent."
            )
    if steps is not None:
        _validate.at_least(1, steps=steps)
    asked = {"sampling_prob": sampling_prob, "steps": steps, "expected_steps": steps}
    given = {name: asked[name] for name in asked.keys() & takes}
    given = {name: value for name, value in given.items() if value is not None}
    chosen = replace(chosen, **given).sized(budget, Problem(n_rows=n_rows))
    own = vars(chosen)
    return chosen, steps or own.get("steps") or own.get("expected_steps") or EPOCHS
