# SPDX-License-Identifier: Apache-2.0
"""The only training loop: plan from released values, pay, open, step.

A method never sees a row.  It names the mechanisms of its next batch from its state,
which holds released values only; the gate charges them or ends the run; then the method
turns the batch's answers into a new state and a record.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Protocol, TypeVar

from torch import Tensor

from armijo.data.private import BatchPlan, PrivateBatch, PrivateDataset
from armijo.errors import BudgetExceeded
from armijo.objectives.base import Objective
from armijo.privacy.mechanisms import Mechanism


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """Released values of one batch: no loss, no batch size, no exact norm.

    Attributes
    ----------
    batch : int
        Which batch of the run.
    update : int
        How many updates were made before it.
    step_size : float or None
        The chosen step; zero when a search found none, None without a step.
    tries : int
        Evaluations of the objective on the rows of the batch.
    gradients : int or None
        Evaluations of the gradient; None where their number depends on the rows.
    direction_norm : float or None
        Norm of the noisy direction.
    angle : float or None
        Angle in degrees to the direction it was compared with.
    gradient_rho, search_epsilon : float or None
        Budgets of this batch before amplification.
    grad_clip, loss_clip, step_max : float or None
        Settings of this batch.
    epsilon : float
        Used share of the budget, times epsilon: progress, not a guarantee.
    """

    batch: int = 0
    update: int
    step_size: float | None = None
    tries: int = 0
    gradients: int | None = 1
    direction_norm: float | None = None
    angle: float | None = None
    gradient_rho: float | None = None
    search_epsilon: float | None = None
    grad_clip: float | None = None
    loss_clip: float | None = None
    step_max: float | None = None
    epsilon: float = 0.0

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the record as a JSON object."""
        return asdict(self)


class State(Protocol):
    """What every method's state has."""

    @property
    def w(self) -> Tensor:
        """The parameters."""
        ...


S = TypeVar("S", bound=State)
Schedule = tuple[tuple[Mechanism, int], ...]
"""Charges in their order, each with how often it follows itself."""


class Method(Protocol[S]):
    """An algorithm as public settings and pure functions of its state."""

    def init(self, w: Tensor) -> S:
        """Return the first state."""
        ...

    def schedule(self) -> Schedule | None:
        """Return every charge of the run if they are fixed beforehand, else None."""
        ...

    def plan(self, state: S) -> BatchPlan:
        """Name what the next batch is for, from released values only."""
        ...

    def step(
        self, batch: PrivateBatch, objective: Objective, state: S, batch_size: float
    ) -> tuple[S, StepRecord]:
        """Use the batch; ``batch_size`` is the public expected one."""
        ...


def minimize(
    objective: Objective,
    data: PrivateDataset,
    method: Method[S],
    state: S,
    *,
    max_batches: int | None = None,
) -> Iterator[tuple[S, StepRecord]]:
    """Run a method until its budget or ``max_batches`` ends.

    Yields
    ------
    state, record
        After every batch, retries included.  The run ends when the accountant refuses
        the next plan, before any access.
    """
    done = 0
    while max_batches is None or done < max_batches:
        plan = method.plan(state)
        try:
            batch = data.open(plan, label=type(method).__name__)
        except BudgetExceeded:
            return
        size = data.expected_batch_size(plan.rate)
        state, record = method.step(batch, objective, state, size)
        done += 1
        spent = data.accountant.epsilon_spent()
        yield state, _stamped(record, batch=batch.number, epsilon=spent)


def _stamped(record: StepRecord, *, batch: int, epsilon: float) -> StepRecord:
    """Return the record with the number of its batch and the spent epsilon."""
    return replace(record, batch=batch, epsilon=epsilon)
