# SPDX-License-Identifier: Apache-2.0
"""scikit-learn estimators: thin shells around the one training loop."""

from armijo.estimators.linear import PrivateLinearSVC, PrivateLogisticRegression
from armijo.estimators.statement import PrivacyStatement

__all__ = ["PrivacyStatement", "PrivateLinearSVC", "PrivateLogisticRegression"]
