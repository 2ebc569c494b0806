# SPDX-License-Identifier: Apache-2.0
"""Methods by name, each with the parameters it takes."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from armijo import _validate
from armijo.baselines.agd import AGDSettings
from armijo.baselines.hyfree import HyFreeSettings
from armijo.baselines.objpert import (
    AMPSettings,
    KSTSettings,
    ObjPertSettings,
    PureObjPertSettings,
)
from armijo.baselines.outpert import OutpertGDSettings, OutpertRSGDSettings
from armijo.baselines.privgene import PrivGeneSettings
from armijo.baselines.trivial import MajoritySettings, NonPrivateSettings
from armijo.baselines.tuned import TunedSGDSettings
from armijo.methods.auto import AutoSettings
from armijo.methods.base import MethodSettings
from armijo.methods.line_search import (
    LINE_SEARCHES,
    line_search_settings,
    line_search_takes,
)
from armijo.methods.sgd import AdamSettings, SGDSettings

SETTINGS: dict[str, type[MethodSettings]] = {
    "sgd": SGDSettings,
    "adam": AdamSettings,
    "outpert-rsgd": OutpertRSGDSettings,
    "outpert-gd": OutpertGDSettings,
    "objpert": ObjPertSettings,
    "objpert-kst": KSTSettings,
    "objpert-pure": PureObjPertSettings,
    "amp": AMPSettings,
    "nonprivate": NonPrivateSettings,
    "agd": AGDSettings,
    "privgene": PrivGeneSettings,
    "majority": MajoritySettings,
    "hyfree": HyFreeSettings,
    "sgd-tuned": TunedSGDSettings,
    "auto": AutoSettings,
}
"""Settings of the methods whose parameters are the fields of one dataclass."""

METHODS = (*LINE_SEARCHES, *SETTINGS)
"""Names that ``method=`` takes."""


SUMMARIES = {
    "auto": "nothing to set: preconditioned steps by a private three-point search",
    "blsgd": "DP-BLSGD: noisy gradients, step sizes by a private Armijo search",
    "blsgd-ac": "the same with clips that shrink when gradients disagree",
    "blgd": "DP-BLGD: all rows each time; a failed search buys a better gradient",
    "agd": "DP-AGD (Lee and Kifer 2018): private choice from a grid of steps",
    "sgd": "DP-SGD (Abadi et al. 2016) with a given step size",
    "adam": "DP-Adam: the same gradients, rescaled",
    "outpert-rsgd": "permuted SGD, noise on its average (Chen, Lee and Kifer 2019)",
    "outpert-gd": "gradient descent, noise on its end (Zhang et al. 2017)",
    "objpert": "objective perturbation, tight analysis (Redberg et al. 2023)",
    "objpert-kst": "objective perturbation (Kifer, Smith and Thakurta 2012)",
    "objpert-pure": "objective perturbation, delta = 0 (Chaudhuri et al. 2011)",
    "amp": "objective perturbation, approximate minima (Iyengar et al. 2019)",
    "privgene": "private genetic algorithm (Zhang et al. 2013)",
    "hyfree": "HyFreeDP (Liu and Bu 2025): steps from privatized losses",
    "sgd-tuned": "DP-SGD tuned by private selection (Papernot and Steinke 2022)",
    "majority": "the most frequent class, chosen privately",
    "nonprivate": "L-BFGS without privacy: an upper bound, no guarantee",
}
"""What each method is, in a line."""


def describe_methods() -> list[dict[str, Any]]:
    """Return name, summary and parameters of every method, as JSON values."""
    return [
        {
            "name": name,
            "summary": SUMMARIES[name],
            "parameters": sorted(parameters_of(name)),
        }
        for name in SUMMARIES
        if name in METHODS
    ]


def method_settings(method: str, asked: Mapping[str, Any]) -> MethodSettings:
    """Return the settings of a method from the parameters that were asked for.

    Parameters
    ----------
    method : str
        One of :data:`METHODS`.
    asked : mapping
        Parameters by name; what is left out has the method's own default.

    Raises
    ------
    ValueError
        For a parameter that the method does not take, by name.

    Examples
    --------
    >>> method_settings("sgd", {"steps": 20}).steps
    20
    """
    _validate.choice(METHODS, method=method)
    takes = parameters_of(method)
    foreign = sorted(set(asked) - takes)
    if foreign:
        raise ValueError(
            f"Method {method!r} does not take {', '.join(foreign)}; it takes "
            f"{', '.join(sorted(takes)) or 'no parameters'}. Nothing was spent."
        )
    if method in SETTINGS:
        return SETTINGS[method](**asked)
    return line_search_settings(method, asked)


def parameters_of(method: str) -> set[str]:
    """Return the names of the parameters that a method takes."""
    if method in SETTINGS:
        return {field.name for field in fields(SETTINGS[method])}
    return line_search_takes(method)
