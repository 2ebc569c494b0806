# SPDX-License-Identifier: Apache-2.0
"""Private logistic regression and private linear support vector machine."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from armijo.estimators.base import PrivateLinearClassifier


class PrivateLogisticRegression(PrivateLinearClassifier):
    """Logistic regression under differential privacy, without a learning rate.

    More than two classes are fitted by softmax.  Parameters and attributes are those
    of :class:`armijo.estimators.base.PrivateLinearClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([[0.0, 1.0], [1.0, 0.0]], 500, axis=0)
    >>> y = np.repeat([0, 1], 500)
    >>> model = PrivateLogisticRegression(
    ...     epsilon=2.0, classes=[0, 1], n_rows=1000
    ... )
    >>> model.fit(X, y).score(X, y)
    1.0
    >>> print(model.privacy_.relation)
    add-remove
    """

    _losses: ClassVar[tuple[str, ...]] = ("logistic",)
    _multi_class: ClassVar[bool] = True

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            positive = expit(scores)
            return np.column_stack([1 - positive, positive])
        return np.asarray(softmax(scores, axis=1))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each class."""
        return np.asarray(np.log(self.predict_proba(X)))


class PrivateLinearSVC(PrivateLinearClassifier):
    """Linear support vector machine under differential privacy, for two classes.

    ``loss`` is "hinge", "huber", the hinge rounded at its kink, or any
    :class:`armijo.objectives.losses.Loss`.  Other parameters and attributes are those
    of :class:`armijo.estimators.base.PrivateLinearClassifier`.
    """

    _losses: ClassVar[tuple[str, ...]] = ("hinge", "huber")
    _any_loss: ClassVar[bool] = True
