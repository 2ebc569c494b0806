# SPDX-License-Identifier: Apache-2.0
"""The paper's methods by name: from the budget of a run to its first budgets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from armijo import _validate
from armijo.optim.blgd import BLGD
from armijo.optim.blsgd import BLSGD
from armijo.optim.problem import MethodSettings, Problem
from armijo.privacy.budget import Budget
from armijo.privacy.calibration import line_search_budget
from armijo.search.armijo import ArmijoSearch

LINE_SEARCHES = ("blsgd", "blsgd-ac", "blgd")
"""DP-BLSGD, the same with clip adaptation, and full-batch DP-BLGD."""

SPLITS = 50
"""Chen and Lee (2020) divide epsilon by twice the iterations they expect."""

_SEARCH_NAMES = {  # what a user calls a field of the search
    "search": "kind",
    "search_form": "form",
    "slope": "slope",
    "shrink": "shrink",
    "max_tries": "max_tries",
    "subtract_noise": "subtract_noise",
    "armijo": "armijo",
}
_STOCHASTIC = {"rate", "adapt", "angle_decay", "angle_high", "angle_low", "average"}


@dataclass(frozen=True, kw_only=True)
class LineSearchSettings(MethodSettings):
    """Every public setting of the line-search methods, in the paper's defaults.

    ``gradient_rho`` and ``search_epsilon`` default to the paper's
    ``epsilon_iter^2 / 2`` and ``epsilon_iter = epsilon / 100``; with
    ``expected_steps`` they are solved so that this many steps use up the budget.
    """

    method: str = "blsgd"
    rate: float = 0.1
    gradient_rho: float | None = None
    search_epsilon: float | None = None
    expected_steps: int | None = None
    grad_clip: float = 3.0
    loss_clip: float = 1.0
    step_max: float = 2.0
    budget_growth: float = 0.3
    adapt: Literal["angle", "always", "never"] = "angle"
    angle_decay: float = 0.8
    angle_high: float = 1.1
    angle_low: float = 0.5
    refresh_every: int = 10
    headroom: float = 1.2
    clip_decay: float = 0.05
    average: Literal["plain", "weighted"] = "plain"
    tail_mean: bool = False
    search: ArmijoSearch = field(default_factory=ArmijoSearch)

    def build(self, problem: Problem) -> BLSGD | BLGD:
        """Return the method with its first budgets."""
        return line_search_method(self, problem.budget)


def line_search_settings(method: str, asked: Mapping[str, Any]) -> LineSearchSettings:
    """Return settings from flat parameters, those of the search among them."""
    search = {_SEARCH_NAMES[name]: asked[name] for name in asked.keys() & _SEARCH_NAMES}
    rest = {name: asked[name] for name in asked.keys() - _SEARCH_NAMES}
    return LineSearchSettings(method=method, search=ArmijoSearch(**search), **rest)


def line_search_takes(method: str) -> set[str]:
    """Return the names of the flat parameters that a line-search method takes."""
    names = {field.name for field in fields(LineSearchSettings)} - {"method", "search"}
    names |= _SEARCH_NAMES.keys()
    if method != "blsgd-ac":
        names -= {"clip_decay"}
    return names - _STOCHASTIC if method == "blgd" else names


def line_search_method(settings: LineSearchSettings, budget: Budget) -> BLSGD | BLGD:
    """Return the method that the settings name, with its first budgets."""
    _validate.choice(LINE_SEARCHES, method=settings.method)
    rho, epsilon = _first_budgets(settings, budget)
    kind = BLGD if settings.method == "blgd" else BLSGD
    shared = _shared(settings, kind)
    if settings.method == "blsgd":
        shared["clip_decay"] = 0.0
    return kind(gradient_rho=rho, search_epsilon=epsilon, **shared)


def _shared(settings: LineSearchSettings, kind: type[BLSGD | BLGD]) -> dict[str, Any]:
    """Return the settings that the method has under the same name."""
    names = {field.name for field in fields(kind)} - {"gradient_rho", "search_epsilon"}
    return {name: getattr(settings, name) for name in sorted(names)}


def _first_budgets(settings: LineSearchSettings, budget: Budget) -> tuple[float, float]:
    """Return gradient rho and search epsilon of the first batch."""
    if settings.expected_steps is not None:
        _validate.at_least(1, expected_steps=settings.expected_steps)
        solved = line_search_budget(
            budget,
            rate=1.0 if settings.method == "blgd" else settings.rate,
            steps=settings.expected_steps,
            search=settings.search.mechanism,
        )
        per_step = solved.gradient_rho, solved.search_epsilon
    else:
        each = budget.epsilon / (2 * SPLITS)
        per_step = each**2 / 2, each
    rho = per_step[0] if settings.gradient_rho is None else settings.gradient_rho
    epsilon = per_step[1]
    if settings.search_epsilon is not None:
        epsilon = settings.search_epsilon
    _validate.positive(gradient_rho=rho, search_epsilon=epsilon)
    return rho, epsilon
