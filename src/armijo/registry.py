# SPDX-License-Identifier: Apache-2.0
"""Methods by name, for linear models and for networks, with the options they take."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from armijo import _validate
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
from armijo.methods.base import Method
from armijo.methods.line_search import BLGD, BLSGD
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

    def made(self, asked: Mapping[str, Any]) -> Method[Any]:
        """Return the method with some options given."""
        return self.kind.from_options({**self.defaults, **asked})


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
    "auto": Entry(
        AutoNetwork, "nothing to set: the step follows a private three-point search"
    ),
    "blsgd": Entry(
        BLSGD,
        "DP-BLSGD in network mode: Gaussian search with a tenth of each step's "
        "budget, a fallback step instead of none, no budget increase",
        {
            "search_share": 0.1,
            "max_grad_norm": 1.0,
            "initial_step": 1.0,
            "adapt": "never",
            "search": "gaussian",
            "slope": 0.1,
            "search_form": "difference",
            "subtract_noise": True,
            "fallback": True,
        },
    ),
    "sgd": Entry(DPSGD, "DP-SGD with a given step size"),
    "adam": Entry(DPAdam, "DP-Adam"),
    "hyfree": Entry(
        HyFree,
        "HyFreeDP: automatic clipping with its published constant",
        {"stability": 0.01, "step_size": 1e-3, "loss_clip": 3.0, "growth_cap": 2.0},
    ),
    "nonprivate": Entry(
        NonPrivateAdam, "Adam without noise: an upper bound, no guarantee"
    ),
}
"""The methods for networks."""

METHODS = tuple(LINEAR)
"""Names that ``method=`` takes for linear models."""

NETWORK_METHODS = tuple(NETWORK)
"""Names that :func:`armijo.train` takes."""

EPOCHS = 10
"""Expected passes over the examples when no number of steps is given."""

BATCH = 256
"""Expected batch size for few examples; more use 1/100."""

_OF_TRAINING = frozenset({"sampling_prob", "steps", "expected_steps"})


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
    method: str | Method[Any], asked: Mapping[str, Any] | None = None
) -> Method[Any]:
    """Return a method by name with the options that were asked for.

    Parameters
    ----------
    method : str or Method
        One of :data:`METHODS`, or a method, which has its options already.
    asked : mapping or None
        Options by name; what is left out has the method's own default.

    Raises
    ------
    ValueError
        For an option that the method does not take, by name.

    Examples
    --------
    >>> make_method("sgd", {"steps": 20}).steps
    20
    """
    if isinstance(method, Method):
        _refuse_twice(method, asked)
        return method
    _validate.choice(METHODS, method=method)
    _refuse_foreign(method, asked or {}, parameters_of(method))
    return LINEAR[method].made(asked or {})


def parameters_of(method: str) -> set[str]:
    """Return the names of the options that a method takes."""
    return LINEAR[method].options


def _refuse_twice(method: Method[Any], asked: Mapping[str, Any] | None) -> None:
    if asked:
        name = type(method).__name__
        raise ValueError(
            f"Expected no options beside method={name}(...), got "
            f"{', '.join(sorted(asked))}; give them to {name}. Nothing was spent."
        )


def _refuse_foreign(method: str, asked: Mapping[str, Any], takes: set[str]) -> None:
    foreign = sorted(set(asked) - takes)
    if foreign:
        raise ValueError(
            f"Method {method!r} does not take {', '.join(foreign)}; it takes "
            f"{', '.join(sorted(takes)) or 'no parameters'}. Nothing was spent."
        )


def network_method(
    method: str | Method[Any],
    options: Mapping[str, Any] | None = None,
    *,
    sampling_prob: float,
    steps: int,
) -> Method[Any]:
    """Return a method for networks by name, or a given one, for so many batches.

    An option that the method does not take is refused by name.  A method that is given
    itself has its options already.
    """
    if isinstance(method, Method):
        _refuse_twice(method, options)
        found = method
    else:
        _validate.choice(NETWORK_METHODS, method=method)
        entry = NETWORK[method]
        _refuse_foreign(method, options or {}, entry.options - _OF_TRAINING)
        found = entry.made(options or {})
    sizes = {"sampling_prob": sampling_prob, "steps": steps, "expected_steps": steps}
    takes = found.options()
    return replace(found, **{name: sizes[name] for name in sizes if name in takes})


def network_sizes(
    method: str | Method[Any],
    *,
    n_rows: int,
    sampling_prob: float | None = None,
    steps: int | None = None,
) -> tuple[float, int]:
    """Return sampling probability and number of batches of a training.

    What is not given is the method's, if it was given itself; else batches have 256
    expected examples, or 1/100 of all if that is more, and there are ten expected
    passes over the examples.  The same passes in larger batches bear less noise, until
    too few steps are left.

    >>> network_sizes("sgd", n_rows=60_000), network_sizes("sgd", n_rows=1_024)
    ((0.01, 1000), (0.25, 40))
    """
    sizes: Mapping[str, Any] = {}
    if isinstance(method, Method):
        sizes = {"sampling_prob": 1.0, **vars(method)}
        if sampling_prob not in (None, 1) and "sampling_prob" not in method.options():
            raise ValueError(
                f"Expected sampling_prob=1 or None with {type(method).__name__}, which "
                f"uses all rows each time, got {sampling_prob!r}. Nothing was spent."
            )
        if steps is None:
            steps = sizes.get("steps") or sizes.get("expected_steps")
    if sampling_prob is None:
        sampling_prob = sizes.get("sampling_prob")
    if sampling_prob is None:
        sampling_prob = min(1.0, max(BATCH / n_rows, 1 / 100))
    _validate.sampling_prob(sampling_prob=sampling_prob)
    if steps is None:
        steps = max(1, round(EPOCHS / sampling_prob))
    _validate.at_least(1, steps=steps)
    return sampling_prob, steps
