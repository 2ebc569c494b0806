# SPDX-License-Identifier: Apache-2.0
"""Differentially private training that finds its own step size."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "Budget": "armijo.privacy.budget",
    "PrivateLinearSVC": "armijo.estimators",
    "PrivateLogisticRegression": "armijo.estimators",
    "Solution": "armijo.estimators",
    "blank_rows": "armijo.networks.inputs",
    "solve": "armijo.estimators",
    "train": "armijo.networks.train",
}
__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: accounting does without torch."""
    if name not in _NAMES:
        raise AttributeError(f"module 'armijo' has no attribute {name!r}")
    return getattr(import_module(_NAMES[name]), name)
