# SPDX-License-Identifier: Apache-2.0
"""scikit-learn estimators and one call for researchers, around the one driver."""

from armijo.accounting.accountants import PrivacyStatement
from armijo.estimators.additive import PrivateClassifier, PrivateRegressor
from armijo.estimators.base import unknown_rows
from armijo.estimators.linear import (
    PrivateLinearClassifier,
    PrivateLinearSVC,
    PrivateLogisticRegression,
)
from armijo.estimators.solve import Solution, solve

__all__ = [
    "PrivacyStatement",
    "PrivateClassifier",
    "PrivateLinearClassifier",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "PrivateRegressor",
    "Solution",
    "solve",
    "unknown_rows",
]
