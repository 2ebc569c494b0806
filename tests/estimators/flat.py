# SPDX-License-Identifier: Apache-2.0
"""Parameters of a fit and options of its method in one mapping, as tests name them."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from armijo.estimators import PrivateLinearClassifier

OF_ESTIMATORS = set(signature(PrivateLinearClassifier).parameters)


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an estimator takes, what it does not take among the options."""
    own = {name: given[name] for name in given if name in OF_ESTIMATORS}
    rest = {name: given[name] for name in given if name not in OF_ESTIMATORS}
    return {**own, "options": {**rest, **(given.get("options") or {})}}
