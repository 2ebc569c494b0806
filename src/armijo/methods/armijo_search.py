# SPDX-License-Identifier: Apache-2.0
"""NoisyBTLS: the first step size that passes a noisy Armijo test.

Chen and Lee (2020), Algorithm 1: candidates ``eta_0, beta eta_0, beta^2 eta_0, ...``
are compared one after the other by AboveThreshold.  On the scale of sums, with L the
public expected batch size and P the penalty, candidate eta asks

    sum_B [f(w) - f(w - eta g)] - slope eta L ||g||^2 + L [P(w) - P(w - eta g)]

Only the first sum sees data; the rest is a public constant given the released ``g``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from armijo import _validate
from armijo._validate import Count, Share
from armijo.accounting.above_threshold import AboveThreshold
from armijo.data.gate import PrivateBatch
from armijo.data.query import SMALLEST_BOUND, BoundedQuery
from armijo.methods.base import Direction
from armijo.objectives.base import Objective, QueryForm


@dataclass(frozen=True)
class StepChoice:
    """What a search released: the step size (zero for none) and how many it tried."""

    step_size: float
    tries: int


@dataclass(frozen=True, kw_only=True)
class ArmijoSearch:
    """Private backtracking line search.

    Attributes
    ----------
    kind : {"laplace", "gaussian"}
        Noise of threshold and queries.
    slope : float
        The Armijo constant (the paper's plain alpha).
    shrink : float
        Factor between candidates (the paper's beta).
    max_tries : int
        Most candidates (``max_it``); part of the mechanism.
    form : {"loss", "difference"}
        Clip both losses to ``loss_clip`` as published, or clip the *difference* to the
        public ``eta * max_grad_norm * ||g||``, which is far smaller for small steps.
    subtract_noise : bool
        Whether the public noise energy ``d sigma^2 / L^2`` is subtracted from
        ``||g||^2`` in the Armijo term.
    armijo_scaling : {"sum", "as-published"}
        Armijo term on the scale of the sum (times L), or as published, without L.
    fallback : bool
        Whether a search without success returns ``shrink^max_tries * initial_step``
        (network mode) instead of zero.
    """

    kind: Literal["laplace", "gaussian"] = "laplace"
    slope: Share = 0.5
    shrink: Share = 0.8
    max_tries: Count = 20
    form: QueryForm = "loss"
    subtract_noise: bool = False
    armijo_scaling: Literal["sum", "as-published"] = "sum"
    fallback: bool = False

    def __post_init__(self) -> None:
        _validate.fields(self)

    def mechanism(self, search_epsilon: float) -> AboveThreshold:
        """Return what one search costs; Gaussian noise gets rho = epsilon^2 / 2."""
        if self.kind == "laplace":
            return AboveThreshold.laplace(search_epsilon, self.max_tries)
        return AboveThreshold.gaussian(search_epsilon**2 / 2, self.max_tries)

    def candidates(self, initial_step: float) -> list[float]:
        """Return the step sizes in the order in which they are tried."""
        return [initial_step * self.shrink**i for i in range(self.max_tries)]

    def choose(
        self,
        batch: PrivateBatch,
        objective: Objective,
        w: Tensor,
        direction: Direction,
        *,
        mechanism: AboveThreshold,
        initial_step: float,
        loss_clip: float,
        max_grad_norm: float,
    ) -> StepChoice:
        """Search on an open batch."""
        steps = self.candidates(initial_step)
        public = self._public_part(objective, w, direction, batch.expected_size)
        norm = direction.squared_norm**0.5

        def queries() -> Iterator[BoundedQuery]:
            for step_size in steps:
                clip = loss_clip
                if self.form == "difference":
                    clip = max(step_size * max_grad_norm * norm, SMALLEST_BOUND)
                query = objective.loss_drop_sum(
                    w, direction.vector, step_size, form=self.form, clip=clip
                )
                yield replace(query, offset=public(step_size))

        index = batch.first_above(queries(), mechanism)
        if index is not None:
            return StepChoice(steps[index], index + 1)
        last = initial_step * self.shrink**self.max_tries if self.fallback else 0.0
        return StepChoice(last, self.max_tries)

    def _public_part(
        self,
        objective: Objective,
        w: Tensor,
        direction: Direction,
        batch_size: float,
    ) -> Callable[[float], float]:
        """Return the public part of the query as a function of the step size."""
        energy = direction.squared_norm
        if self.subtract_noise:
            energy = max(energy - direction.noise_sq_norm, 0.0)
        scale = batch_size if self.armijo_scaling == "sum" else 1.0
        drop = objective.penalty_drop(w, direction.vector)
        return lambda eta: batch_size * drop(eta) - self.slope * eta * scale * energy
