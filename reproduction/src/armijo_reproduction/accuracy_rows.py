# SPDX-License-Identifier: Apache-2.0
"""Which variants are compared, with which parameters, and what was measured before.

The *prototype* figures come from throw-away implementations on one to three folds: read
them as plus or minus 0.01, and 0.03 at epsilon 0.05.
"""

from typing import Any

ALL = ("adult", "bank", "ipums-br")
BY_EPSILON: dict[str, dict[str, tuple[float, ...]]] = {
    "blsgd-calibrated": {
        "expected_steps": (60, 60, 100, 200, 200, 200),
        "grad_clip": (1.0, 1.0, 2.0, 3.0, 3.0, 3.0),
        "step_max": (6.0, 12.0, 8.0, 8.0, 8.0, 8.0),
    },
    "blgd-calibrated": {
        "expected_steps": (60, 60, 100, 100, 100, 100),
        "grad_clip": (1.0, 1.0, 2.0, 3.0, 3.0, 3.0),
        "step_max": (6.0, 12.0, 8.0, 8.0, 8.0, 8.0),
    },
}
"""Parameters of the calibrated variants that follow the budget.

Where noise is large, a lower clip cuts it more than the signal; the first candidate has
to grow with it, or so few steps do not arrive.
"""
CALIBRATED: dict[str, Any] = {
    "search_form": "difference",
    "subtract_noise": True,
    "slope": 0.1,
    "tail_mean": True,
}
UNIT = {"feature_norm": 1.0}
LINE_SEARCHES: dict[str, dict[str, Any]] = {
    "blsgd": {"method": "blsgd"},
    "blgd": {"method": "blgd"},
    "blsgd-calibrated": {"method": "blsgd", **CALIBRATED},
    "blgd-calibrated": {"method": "blgd", **CALIBRATED},
}
BASELINES: dict[str, dict[str, Any]] = {
    "agd": {"method": "agd"},
    "agd-classical": {"method": "agd", "options": {"initial_split": "classical"}},
    "agd-clip-1": {"method": "agd", "loss_clip": 1.0, "budget_growth": 0.3},
    "sgd": {"method": "sgd"},
    "adam": {"method": "adam"},
    "objpert-kst": {"method": "objpert-kst", **UNIT},
    "objpert": {"method": "objpert", **UNIT},
    "outpert-gd-replica": {"method": "outpert-gd", "variant": "replica", **UNIT},
    "outpert-gd": {"method": "outpert-gd", **UNIT},
    "outpert-rsgd": {"method": "outpert-rsgd", **UNIT},
    "privgene": {"method": "privgene"},
    "privgene-exchange": {"method": "privgene", "options": {"exchange": True}},
    "hyfree": {"method": "hyfree"},
    "sgd-tuned": {"method": "sgd-tuned"},
    "amp": {"method": "amp", **UNIT},
    "objpert-pure": {"method": "objpert-pure", **UNIT},
    "majority": {"method": "majority"},
    "nonprivate": {"method": "nonprivate"},
}
VARIANTS = {**LINE_SEARCHES, **BASELINES}
ONE_BUDGET = ("majority", "nonprivate")
"""Variants whose answer does not depend on epsilon: run at the largest only."""

Figures = tuple[float | None, ...]
PROTOTYPES: dict[tuple[str, str, str], Figures] = {
    ("adult", "logistic", "blgd"): (0.809, 0.828, 0.837, 0.840, 0.838, 0.807),
    ("adult", "logistic", "blsgd"): (0.779, 0.813, 0.828, 0.836, 0.838, 0.842),
    ("adult", "logistic", "agd"): (0.804, 0.825, 0.827, 0.836, 0.841, 0.845),
    ("adult", "logistic", "agd-classical"): (0.783, 0.801, 0.820, 0.831, 0.839, 0.842),
    ("adult", "logistic", "agd-clip-1"): (0.804, 0.819, 0.833, 0.821, 0.764, 0.764),
    ("adult", "logistic", "sgd"): (0.819, 0.831, 0.833, 0.834, 0.835, 0.835),
    ("adult", "logistic", "adam"): (0.804, 0.821, 0.828, 0.835, 0.839, 0.842),
    ("adult", "logistic", "objpert-kst"): (0.798, 0.824, 0.832, 0.832, 0.831, 0.828),
    ("adult", "logistic", "objpert"): (0.826, 0.832, 0.832, 0.830, 0.829, 0.828),
    ("adult", "logistic", "outpert-gd-replica"): (0.764,) * 6,
    ("adult", "logistic", "outpert-gd"): (0.763, 0.808, 0.813, 0.815, 0.817, 0.817),
    ("adult", "logistic", "outpert-rsgd"): (0.783, 0.781, 0.779, 0.778, 0.777, 0.777),
    ("adult", "logistic", "privgene"): (0.764, 0.786, 0.799, 0.819, 0.824, None),
    ("adult", "logistic", "nonprivate"): (None, None, None, None, None, 0.8456),
    ("adult", "logistic", "majority"): (None, None, None, None, None, 0.7607),
    ("bank", "logistic", "blgd"): (0.889, 0.898, 0.898, 0.897, 0.898, 0.898),
    ("bank", "logistic", "blsgd"): (0.868, 0.886, 0.898, 0.899, 0.899, 0.900),
    ("bank", "logistic", "agd"): (0.858, 0.873, 0.890, 0.894, 0.896, 0.895),
    ("bank", "logistic", "agd-classical"): (0.772, 0.773, 0.834, 0.867, 0.893, 0.894),
    ("bank", "logistic", "sgd"): (0.887, 0.887, 0.888, 0.887, 0.887, 0.886),
    ("bank", "logistic", "objpert-kst"): (0.866, 0.886, 0.886, 0.886, 0.886, 0.886),
    ("bank", "logistic", "objpert"): (0.887, 0.886, 0.886, 0.886, 0.886, 0.886),
    ("bank", "logistic", "outpert-gd-replica"): (0.885,) * 6,
    ("bank", "logistic", "outpert-gd"): (0.884, 0.885, 0.885, 0.885, 0.885, 0.885),
    ("bank", "logistic", "outpert-rsgd"): (0.885,) * 6,
    ("bank", "logistic", "privgene-exchange"): (
        *(0.888, 0.888, 0.888, 0.888, 0.887, 0.892),
    ),
    ("bank", "logistic", "nonprivate"): (None, None, None, None, None, 0.8990),
    ("bank", "logistic", "majority"): (None, None, None, None, None, 0.8830),
    ("ipums-br", "logistic", "blgd"): (0.679, 0.736, 0.752, 0.756, 0.760, 0.761),
    ("ipums-br", "logistic", "blsgd"): (0.707, 0.737, 0.757, 0.768, 0.770, 0.770),
    ("ipums-br", "logistic", "agd"): (0.688, 0.712, 0.753, 0.764, 0.767, 0.765),
    ("ipums-br", "logistic", "agd-classical"): (
        *(0.633, 0.665, 0.707, 0.726, 0.750, 0.757),
    ),
    ("ipums-br", "logistic", "sgd"): (0.724, 0.742, 0.748, 0.750, 0.750, 0.750),
    ("ipums-br", "logistic", "objpert-kst"): (0.644, 0.707, 0.741, 0.750, 0.750, 0.751),
    ("ipums-br", "logistic", "objpert"): (0.729, 0.745, 0.750, 0.751, 0.751, 0.751),
    ("ipums-br", "logistic", "outpert-gd-replica"): (
        *(0.650, 0.698, 0.718, 0.724, 0.724, 0.726),
    ),
    ("ipums-br", "logistic", "outpert-gd"): (0.663, 0.710, 0.733, 0.738, 0.739, 0.741),
    ("ipums-br", "logistic", "outpert-rsgd"): (
        *(0.618, 0.691, 0.719, 0.729, 0.731, 0.733),
    ),
    ("ipums-br", "logistic", "privgene"): (0.590, 0.606, 0.657, 0.722, 0.745, 0.749),
    ("ipums-br", "logistic", "privgene-exchange"): (
        *(0.512, 0.596, 0.650, 0.688, 0.732, 0.738),
    ),
    ("ipums-br", "logistic", "nonprivate"): (None, None, None, None, None, 0.7647),
    ("ipums-br", "logistic", "majority"): (None, None, None, None, None, 0.5063),
    ("adult", "svm", "blgd"): (0.822, 0.831, 0.833, 0.837, 0.826, 0.784),
    ("adult", "svm", "agd"): (0.812, 0.824, 0.834, 0.836, 0.834, 0.833),
    ("adult", "svm", "sgd"): (0.823, 0.830, 0.830, 0.830, 0.831, 0.831),
    ("adult", "svm", "objpert-kst"): (0.807, 0.831, 0.835, 0.837, 0.834, 0.834),
    ("adult", "svm", "objpert"): (0.823, 0.832, 0.836, 0.834, 0.834, 0.834),
    ("adult", "svm", "outpert-rsgd"): (0.764, 0.764, 0.764, 0.764, 0.764, 0.767),
    ("adult", "svm", "outpert-gd"): (0.764, 0.764, 0.764, 0.764, 0.764, 0.767),
    ("adult", "svm", "nonprivate"): (None, None, None, None, None, 0.841),
    ("ipums-br", "svm", "blgd"): (0.695, 0.741, 0.729, 0.758, 0.760, 0.762),
    ("ipums-br", "svm", "agd"): (0.682, 0.734, 0.761, 0.764, 0.767, 0.764),
    ("ipums-br", "svm", "sgd"): (0.741, 0.746, 0.747, 0.746, 0.745, 0.744),
    ("ipums-br", "svm", "objpert-kst"): (0.711, 0.745, 0.753, 0.752, 0.753, 0.752),
    ("ipums-br", "svm", "objpert"): (0.745, 0.743, 0.742, 0.753, 0.752, 0.752),
    ("ipums-br", "svm", "nonprivate"): (None, None, None, None, None, 0.768),
}
WITHOUT_PROTOTYPE = ("hyfree", "sgd-tuned", "amp", "objpert-pure")
FEW_FOLDS = 3
"""Folds of the variants that have nothing to be compared with."""

_DEAR = ("hyfree", "agd", "agd-clip-1", "agd-classical", "sgd-tuned")
CHEAPEST_FIRST = (*(v for v in VARIANTS if v not in _DEAR), *_DEAR)
"""The order of the runs, so that an interrupted table has whole rows."""


def wanted(variant: str, dataset: str, model: str, epsilon: float, fold: int) -> bool:
    """Say whether a cell is computed: where there is a figure to compare, or none."""
    if variant in LINE_SEARCHES:
        return True
    if variant in ONE_BUDGET and epsilon != 1.6:
        return False
    if (dataset, model, variant) in PROTOTYPES:
        return True
    new = variant in WITHOUT_PROTOTYPE and model == "logistic"
    return new and fold < FEW_FOLDS


def parameters_of(variant: str, model: str, budget_number: int) -> dict[str, Any]:
    """Return the parameters of the estimator."""
    parameters = dict(VARIANTS[variant])
    chosen = BY_EPSILON.get(variant, {})
    for name, values in chosen.items():
        parameters[name] = values[budget_number]
    if chosen and model == "svm":
        # On the hinge itself precise searches stop early, see Bank in the page.
        parameters["loss"] = "huber"
    return parameters
