# SPDX-License-Identifier: Apache-2.0
"""What settings and released values give reason to look at; all of it is free."""

import warnings
from typing import Any

from armijo.accounting.budget import Budget
from armijo.errors import ModelWarning

MOST_EPSILON = 10.0
"""Above it a guarantee says little: e^10 is 22,026."""
FAR = 5.0
"""Standard deviations of the released count beyond which n_rows is doubtful."""
SLACK = 0.05
"""Rows may be blank: so many of them are no reason for a doubt."""


def doubts_about(model: Any, budget: Budget, n_rows: int) -> tuple[str, ...]:
    """Return what is doubtful about a model, in sentences."""
    found = []
    if budget.delta > 1 / n_rows:
        found.append(
            f"delta {budget.delta:g} is above 1/n = {1 / n_rows:.3g}: such a guarantee "
            "would allow to publish some rows as they are; take one well below it."
        )
    if budget.epsilon > MOST_EPSILON:
        found.append(
            f"epsilon {budget.epsilon:g} is above {MOST_EPSILON:g}: the guarantee "
            "allows probabilities to change by a factor of more than 22,000."
        )
    estimate, noise = float(model.n_rows_estimate), float(model.n_rows_noise)
    if abs(estimate - n_rows) > FAR * noise + SLACK * n_rows:
        found.append(
            f"n_rows is {n_rows}, but the released counts say about {estimate:.0f} "
            f"(standard deviation {noise:.0f}): noise and steps were chosen for "
            "another table. Are rows blank, weights small, or the number wrong?"
        )
    if not model.better_than_prior:
        found.append(
            "the model is no better than predicting the same for every row, as far as "
            "released values tell: the budget is too small for so few rows, or the "
            "columns say nothing about the target."
        )
    return tuple(found)


def warn_of_doubts(doubts: tuple[str, ...]) -> None:
    """Warn of each."""
    for doubt in doubts:
        warnings.warn(doubt, ModelWarning, stacklevel=4)
