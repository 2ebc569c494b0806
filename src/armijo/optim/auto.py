# SPDX-License-Identifier: Apache-2.0
"""The automatic method: a private line search with nothing left to set.

Before the first step it pays for the scale, the mean and the second moments of the
features; each step then pays for a gradient in the frame they make, and for a search
of three points along the preconditioned direction.  All charges are Gaussian, on all
rows and known beforehand, so the run is accounted as one Gaussian.  The model is the
mean of the second half of the iterates.
"""

from dataclasses import dataclass

from armijo import _validate
from armijo.data.private import refuse_unsampleable
from armijo.optim.auto_rules import (
    FIRST_STEP,
    LARGEST_STEP,
    MOST_FEATURES,
    MOST_FOR_NORM,
    READABLE,
    SMALLEST_STEP,
    AutoRules,
    Shares,
)
from armijo.optim.auto_steps import Auto
from armijo.optim.problem import MethodSettings, Problem
from armijo.privacy.calibration import noise_for_plan


@dataclass(frozen=True, kw_only=True)
class AutoSettings(MethodSettings):
    """Public settings of the automatic method; none has to be given.

    Attributes
    ----------
    feature_norm : float or None
        Public bound on the norm of a row.  None pays ``norm_share`` for an estimate.
        It sets the noise of the mean only: no row is clipped in the model.
    steps : int
        Number of steps.
    norm_share, center_share, moment_share, search_share : float
        Parts of the budget (of ``1/sigma^2``) for the scale of the rows, their mean,
        their second moments and all searches; the gradients get the rest.  Without a
        share for them there are no second moments, and no searches.  The scale gets
        more, up to a quarter of the rest, where fewer rows would drown in noise.
    first_step : float
        Where the searches begin, from 1 to 32; the step itself where there are none.
    tail_mean : bool
        Whether the model is the mean of the second half, or else the last iterate.
    """

    feature_norm: float | None = None
    steps: int = 30
    norm_share: float = 0.01
    center_share: float = 0.02
    moment_share: float = 0.03
    search_share: float = 0.05
    first_step: float = FIRST_STEP
    tail_mean: bool = True

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.at_least(1, steps=self.steps)
        if self.feature_norm is not None:
            _validate.positive(feature_norm=self.feature_norm)
        shares = {
            name: getattr(self, name)
            for name in ("norm_share", "center_share", "moment_share", "search_share")
        }
        _validate.positive(
            norm_share=self.norm_share,
            center_share=self.center_share,
            first_step=self.first_step,
        )
        _validate.non_negative(**shares)
        self._check_first_step()
        if not isinstance(self.tail_mean, bool):
            raise ValueError(f"Expected tail_mean True or False, got {self.tail_mean}.")
        if sum(shares.values()) >= 1:
            raise ValueError(
                f"Expected shares that leave something for the gradients, got {shares},"
                " which add up to one or more."
            )

    def _check_first_step(self) -> None:
        """Refuse a step that the first search could not keep."""
        inside = SMALLEST_STEP <= self.first_step <= LARGEST_STEP
        if self.search_share and not inside:
            raise ValueError(
                f"Expected {SMALLEST_STEP:g} <= first_step <= {LARGEST_STEP:g}, got "
                f"{self.first_step!r}; without searches (search_share=0) it may be "
                "any positive number."
            )

    def build(self, problem: Problem) -> Auto:
        """Return the method with its noise, solved for the budget."""
        noise = noise_for_plan(
            problem.budget, lambda z: self.with_noise(z, problem).schedule()
        )
        method = self.with_noise(noise, problem)
        for plan in method.plans():
            refuse_unsampleable(plan)
        return method

    def _norm_share(self, noise: float, n_rows: int) -> float:
        """Return what the scale of the rows gets: more where noise hides few rows.

        All releases are one Gaussian whatever the split, so it may follow the noise.
        """
        if self.feature_norm is not None:
            return 0.0
        readable = (READABLE * noise / n_rows) ** 2
        rest = 1.0 - (self.center_share + self.moment_share + self.search_share)
        return max(self.norm_share, min(readable, MOST_FOR_NORM * rest))

    def with_noise(self, noise: float, problem: Problem) -> Auto:
        """Return the method with a given noise multiplier of the whole run."""
        objective = problem.objective
        few = objective.n_features <= MOST_FEATURES
        shares = Shares(
            norm=self._norm_share(noise, problem.n_rows),
            center=self.center_share,
            moments=self.moment_share if few else 0.0,
            search=self.search_share,
        )
        rules = AutoRules(
            noise=noise,
            n_rows=problem.n_rows,
            n_features=objective.n_features,
            steps=self.steps,
            shares=shares,
            fit_intercept=objective.fit_intercept,
        )
        return Auto(
            objective=objective,
            rules=rules,
            feature_norm=self.feature_norm,
            first_step=self.first_step,
            tail_mean=self.tail_mean,
        )
