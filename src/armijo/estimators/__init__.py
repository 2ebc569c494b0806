# SPDX-License-Identifier: Apache-2.0
"""scikit-learn estimators and one call for researchers, around the one loop."""

from armijo.estimators.linear import PrivateLinearSVC, PrivateLogisticRegression
from armijo.estimators.solve import Solution, solve
from armijo.privacy.statement import PrivacyStatement

__all__ = [
    "PrivacyStatement",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "Solution",
    "solve",
]
