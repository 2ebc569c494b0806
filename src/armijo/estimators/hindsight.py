# SPDX-License-Identifier: Apache-2.0
"""DP-SGD with the settings that turn out best on the test rows: not private.

What a paper reports when it says "tuned" without paying for the tuning.  It is an
upper bound to compare with, and its guarantee says that it does not hold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone

from armijo import _validate
from armijo.accounting.budget import Budget, Guarantee
from armijo.estimators.base import PrivateLinearClassifier
from armijo.estimators.linear import PrivateLinearSVC, PrivateLogisticRegression

HINDSIGHT = (
    "every setting spent the whole budget and the best was chosen by its test "
    "accuracy: not private, an upper bound"
)
"""Broken premise of every hindsight-tuned result."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of DP-SGD; ``step_size=None`` is the method's own."""

    step_size: float | None = None
    max_grad_norm: float = 3.0
    steps: int = 50
    sampling_prob: float = 0.1


def setting_grid(
    *,
    step_sizes: Iterable[float] = (0.1, 0.3, 1.0, 3.0),
    grad_clips: Iterable[float] = (0.3, 1.0, 3.0),
    steps: Iterable[int] = (50,),
    rates: Iterable[float] = (0.1,),
) -> tuple[Setting, ...]:
    """Return every combination.

    >>> len(setting_grid(steps=(50, 200)))
    24
    """
    return tuple(
        Setting(step_size=s, max_grad_norm=c, steps=t, sampling_prob=q)
        for s, c, t, q in product(step_sizes, grad_clips, steps, rates)
    )


@dataclass(frozen=True, kw_only=True)
class HindsightResult:
    """The best run of a grid, in hindsight: not private, an upper bound.

    Attributes
    ----------
    model : PrivateLinearClassifier
        The model of the best setting.
    setting : Setting
        The setting.
    accuracy : float
        Its test accuracy, the highest of all.
    accuracies : tuple of float
        The test accuracy of every setting, in the order of the grid.
    guarantee : Guarantee
        What one run would promise, with the premise that the choice breaks.
    """

    model: PrivateLinearClassifier
    setting: Setting
    accuracy: float
    accuracies: tuple[float, ...]
    guarantee: Guarantee

    def __str__(self) -> str:
        """Say that it is not private."""
        return f"test accuracy {self.accuracy:.4f}. {self.guarantee.sentence()}"


def hindsight_tuned_sgd(
    X: Any,
    y: Any,
    X_test: Any,
    y_test: Any,
    *,
    budget: Budget,
    loss: str = "logistic",
    grid: Sequence[Setting] | None = None,
    l2: float = 1e-3,
    fit_intercept: bool = True,
    random_state: Any = None,
) -> HindsightResult:
    """Run DP-SGD with every setting of a grid and keep the best by test accuracy.

    Parameters
    ----------
    X, y : arrays
        Training rows and labels.
    X_test, y_test : arrays
        Test rows and labels, by which the setting is chosen.
    budget : Budget
        What each run gets; all of them together have no guarantee.
    loss : {"logistic", "hinge", "huber"}
        The loss.
    grid : sequence of Setting or None
        The settings; None is :func:`setting_grid`'s own grid.
    l2, fit_intercept, random_state : float, bool, object
        As in the estimators.

    Returns
    -------
    HindsightResult
        Labelled "not private, an upper bound".
    """
    _validate.choice(("logistic", "hinge", "huber"), loss=loss)
    settings = setting_grid() if grid is None else tuple(grid)
    if not settings:
        raise ValueError("Expected at least one setting in the grid, got none.")
    kind = PrivateLogisticRegression if loss == "logistic" else PrivateLinearSVC
    shared = kind(
        method="sgd",
        epsilon=budget.epsilon,
        delta=budget.delta,
        loss=loss,
        l2=l2,
        fit_intercept=fit_intercept,
        classes=np.unique(np.concatenate([np.ravel(y), np.ravel(y_test)])).tolist(),
        max_batches=None,
        random_state=random_state,
    )
    models = [clone(shared).set_params(options=asdict(setting)) for setting in settings]
    accuracies = [float(model.fit(X, y).score(X_test, y_test)) for model in models]
    best = int(np.argmax(accuracies))
    guarantee = _labelled(models[best])
    return HindsightResult(
        model=models[best],
        setting=settings[best],
        accuracy=accuracies[best],
        accuracies=tuple(accuracies),
        guarantee=guarantee,
    )


def _labelled(model: PrivateLinearClassifier) -> Guarantee:
    """Put the broken premise on the model, and return what is left of its promise."""
    promise = model.privacy_.guarantee
    guarantee = replace(promise, broken_premises=(*promise.broken_premises, HINDSIGHT))
    model.privacy_ = replace(model.privacy_, guarantee=guarantee)
    return guarantee
