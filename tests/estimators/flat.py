# SPDX-License-Identifier: Apache-2.0
"""Parameters of a fit and options of its method in one mapping, as tests name them."""

from collections.abc import Mapping
from inspect import signature
from typing import Any

from armijo.estimators.linear import PrivateLinearClassifier
from armijo.registry import make_method

OF_ESTIMATORS = set(signature(PrivateLinearClassifier).parameters)


def split(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an estimator takes, what it does not take among the options."""
    own = {name: given[name] for name in given if name in OF_ESTIMATORS}
    rest = {
        name: given[name]
        for name in given
        if name not in OF_ESTIMATORS and name != "options"
    }
    return {**own, "options": {**rest, **(given.get("options") or {})}}


def parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of an estimator, with options in its method."""
    own = split(given)
    options = own.pop("options")
    if options:
        own["method"] = make_method(own.get("method", "auto"), options)
    return own
