# SPDX-License-Identifier: Apache-2.0
"""The only training loop, and what a method is: plan from released values, pay, step.

A method never sees a row.  It names the mechanisms of its next batch from its state,
which holds released values only; the gate charges them or ends the run; then the method
turns the batch's answers into a new state and a record.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from armijo import _validate
from armijo._validate import Count, SamplingProb
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import noise_for_plan
from armijo.accounting.mechanisms import Gaussian, Mechanism
from armijo.data.gate import (
    BatchPlan,
    PrivateBatch,
    PrivateDataset,
    refuse_unsampleable,
)
from armijo.errors import BudgetExceeded
from armijo.objectives.base import Objective
from armijo.objectives.linear import LinearObjective, as_linear


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
    max_grad_norm, loss_clip, initial_step : float or None
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
    max_grad_norm: float | None = None
    loss_clip: float | None = None
    initial_step: float | None = None
    epsilon: float = 0.0

    def to_dict(self) -> dict[str, float | int | None]:
        """Return the record as a JSON object."""
        return asdict(self)


class State(Protocol):
    """What every method's state has."""

    @property
    def w(self) -> Tensor:
        """The parameters."""


SOLVED = "solved"
S = TypeVar("S", bound=State)
T = TypeVar("T")
Schedule = tuple[tuple[Mechanism, int], ...]
"""Charges in their order, each with how often it follows itself."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What calibration may know: no row is among it.

    Attributes
    ----------
    objective : Objective or None
        The model, if its settings are public: a linear one, or that of a coded table;
        None for a network.
    n_rows : int
        The public number of rows.
    """

    objective: Objective | None = None
    n_rows: int = 1

    @property
    def network(self) -> bool:
        """Whether it is a network."""
        return self.objective is None

    @property
    def linear(self) -> LinearObjective:
        """The linear model, for methods that ask what only such a model answers."""
        return as_linear(self.objective)


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[S]):
    """An algorithm: its fields are its public settings, its functions are pure.

    Fields are checked by their types (:func:`armijo._validate.fields`); those that are
    None before :meth:`calibrate` follow from the budget.

    Attributes
    ----------
    multi_class : bool
        Whether it takes more than two classes.
    smooth : bool
        Whether it needs a smooth loss; the hinge is then replaced by its Huberized
        form.
    private : bool
        Whether it gives a guarantee at all.
    only_sums : bool
        Whether all that it asks of a batch are noisy sums over its rows, which blocks
        of rows can answer (:class:`armijo.data.blocks.RowBlocks`).
    networks : bool
        Whether its name stands for it among the methods for networks, too.
    only_whole : bool
        Whether all constants are for the whole plan, so that a run of fewer steps is of
        little use.
    """

    multi_class: ClassVar[bool] = True
    networks: ClassVar[bool] = True
    smooth: ClassVar[bool] = False
    private: ClassVar[bool] = True
    only_sums: ClassVar[bool] = False
    only_whole: ClassVar[bool] = False

    @property
    def relation(self) -> Neighboring | None:
        """The relation of its proof; None where one row more or less is what counts."""
        return None

    @property
    def prediction_norm(self) -> float | None:
        """The norm to which rows are clipped in training, hence also to predict."""
        return None

    def __post_init__(self) -> None:
        _validate.fields(self)

    @classmethod
    def options(cls) -> set[str]:
        """Return the names of the options that it takes: fields not only calibrated."""
        return {entry.name for entry in fields(cls) if not entry.metadata.get(SOLVED)}

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return what fields that are None become for a problem."""
        return {}

    def completed(self, problem: Problem) -> Self:
        """Return the method with what is usual for the problem where None was given."""
        usual = self.usual(problem).items()
        missing = {name: value for name, value in usual if getattr(self, name) is None}
        return replace(self, **missing) if missing else self

    def sized(self, budget: Budget, problem: Problem) -> Self:
        """Return the method with its batches: all but what their noise decides."""
        return self.completed(problem)

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Return the method with everything that follows from budget and problem."""
        return self.completed(problem)

    @abstractmethod
    def init(self, w: Tensor) -> S:
        """Return the first state."""

    @abstractmethod
    def schedule(self) -> Schedule | None:
        """Return every charge of the run if they are fixed beforehand, else None."""

    @abstractmethod
    def plan(self, state: S) -> BatchPlan:
        """Name what the next batch is for, from released values only."""

    @abstractmethod
    def step(
        self, batch: PrivateBatch, objective: Objective, state: S
    ) -> tuple[S, StepRecord]:
        """Use the batch; means are divided by its public ``expected_size``."""


M = TypeVar("M", bound=Method[Any])


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
        state, record = method.step(batch, objective, state)
        done += 1
        spent = data.accountant.epsilon_spent()
        yield state, replace(record, batch=batch.number, epsilon=spent)


def solved() -> Any:
    """Return a field that calibration sets, which is no option."""
    return field(default=None, metadata={SOLVED: True})


def calibrated(**given: T | None) -> T:
    """Return a field that calibration sets, refusing to go on without it.

    >>> calibrated(noise_multiplier=2.0)
    2.0
    """
    ((name, value),) = given.items()
    if value is None:
        raise ValueError(
            f"Expected a calibrated method, got {name}=None; call calibrate(budget, "
            "problem) first. Nothing was spent."
        )
    return value


EPOCHS = 10
"""Expected passes over the examples of a network when no number of steps is given."""

BATCH = 256
"""Expected batch size of a network for few examples; more use 1/100."""


def usual_sizes(problem: Problem, sampling_prob: float | None) -> tuple[float, int]:
    """Return sampling probability, unless it is given, and number of batches.

    Linear models take 50 batches with probability 0.1.  Batches of networks have 256
    expected examples, or 1/100 of all if that is more, for ten expected passes over the
    examples: the same passes in larger batches bear less noise, until too few steps are
    left.

    >>> usual_sizes(Problem(n_rows=60_000), None), usual_sizes(Problem(n_rows=9), 0.25)
    ((0.01, 1000), (0.25, 40))
    """
    if not problem.network:
        return sampling_prob or 0.1, 50
    sampling_prob = sampling_prob or min(1.0, max(BATCH / problem.n_rows, 1 / 100))
    return sampling_prob, max(1, round(EPOCHS / sampling_prob))


class CountedState(State, Protocol):
    """A state that counts its updates."""

    @property
    def updates(self) -> int:
        """How many updates were made."""


C = TypeVar("C", bound=CountedState)


@dataclass(frozen=True, kw_only=True)
class SampledBatches(Method[C]):
    """A method with a fixed number of sampled batches, each named by its number.

    Attributes
    ----------
    sampling_prob, steps : float, int or None
        Poisson sampling probability and number of batches; None is what is usual for
        the problem (:func:`usual_sizes`).
    """

    sampling_prob: SamplingProb | None = None
    steps: Count | None = None

    def usual(self, problem: Problem) -> Mapping[str, Any]:
        """Return sampling probability and steps."""
        sampling_prob, steps = usual_sizes(problem, self.sampling_prob)
        return {"sampling_prob": sampling_prob, "steps": steps}

    @abstractmethod
    def releases(self, update: int) -> tuple[Mechanism, ...]:
        """Name what one batch is for."""

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        return schedule_of(map(self._batch, range(calibrated(steps=self.steps))))

    def plan(self, state: C) -> BatchPlan:
        """Name the next batch; past the end, the last again.

        The accountant refuses what is beyond the schedule; a kind of batch that the
        schedule does not have would end a paid run with an error instead.
        """
        return self._batch(min(state.updates, calibrated(steps=self.steps) - 1))

    def _batch(self, update: int) -> BatchPlan:
        sampling_prob = calibrated(sampling_prob=self.sampling_prob)
        return BatchPlan(mechanisms=self.releases(update), sampling_prob=sampling_prob)


class Batch(NamedTuple):
    """What one batch is for: its kind, the phase, and the number within the phase.

    A batch of the kind ``"step"`` releases a gradient and, unless searches have no
    share, loss drops.
    """

    kind: str
    phase: int = 0
    update: int = 0


class PlannedState(State, Protocol):
    """A state that counts its batches."""

    @property
    def batches(self) -> int:
        """How many batches were used."""


P = TypeVar("P", bound=PlannedState)


@dataclass(frozen=True, kw_only=True)
class Planned(Method[P]):
    """A method with nothing to set, whose releases public numbers fix beforehand.

    All releases are on all rows and Gaussian: together they are one Gaussian mechanism
    (Dong, Roth and Su 2022).

    Attributes
    ----------
    noise_multiplier, problem : float or None, Problem or None
        Noise of the whole run, and what it was calibrated for.
    """

    only_sums: ClassVar[bool] = True
    only_whole: ClassVar[bool] = True

    noise_multiplier: float | None = solved()
    problem: Problem | None = solved()
    _known: dict[str, Any] = field(
        default_factory=dict, repr=False, compare=False, metadata={SOLVED: True}
    )

    @property
    @abstractmethod
    def batches(self) -> tuple[Batch, ...]:
        """What all batches are for, in their order."""

    @abstractmethod
    def _mechanisms(self, batch: Batch) -> tuple[Gaussian, ...]:
        """Return the releases of a batch."""

    def calibrate(self, budget: Budget, problem: Problem) -> Self:
        """Solve the noise for the budget."""
        method = with_solved_noise(replace(self, problem=problem, _known={}), budget)
        for plan in method.plans():
            refuse_unsampleable(plan)
        return method

    @property
    def _noise(self) -> float:
        return calibrated(noise_multiplier=self.noise_multiplier)

    @property
    def _n_rows(self) -> int:
        return calibrated(problem=self.problem).n_rows

    def schedule(self) -> Schedule:
        """Return all batches in their order."""
        return schedule_of(self.plans())

    def plans(self) -> Iterator[BatchPlan]:
        """Yield the plans of all batches in their order."""
        return (BatchPlan(mechanisms=self._mechanisms(batch)) for batch in self.batches)

    def plan(self, state: P) -> BatchPlan:
        """Name the releases of the next batch; past the end, one that is refused."""
        batch = self.batches[min(state.batches, len(self.batches) - 1)]
        return BatchPlan(mechanisms=self._mechanisms(batch))

    def releases(self) -> list[dict[str, Any]]:
        """Return name, number, L2 sensitivity and share of the releases, in order."""
        found: dict[str, dict[str, Any]] = {}
        phases = 1 + max(batch.phase for batch in self.batches)
        for batch in self.batches:
            names: tuple[str, ...] = (batch.kind,)
            if batch.kind == "step":
                names = ("gradients", "loss drops")
            if phases > 1 and batch.kind in ("step", "moments"):
                names = tuple(f"{name}, phase {batch.phase + 1}" for name in names)
            for place, used in enumerate(self._mechanisms(batch)):
                name = names[min(place, len(names) - 1)]
                start = {"release": name, "number": 0, "sensitivity": 0.0, "share": 0.0}
                entry = found.setdefault(name, start)
                entry["number"] += 1
                entry["sensitivity"] = max(entry["sensitivity"], used.sensitivity)
                entry["share"] += (self._noise / used.noise_multiplier) ** 2
        return list(found.values())

    def _following(
        self, name: str, release: Tensor | None, compute: Callable[[], T]
    ) -> T:
        """Return what follows from a release, computed once for this one.

        The release is compared as an object: a method may serve several runs.
        """
        held = self._known.get(name)
        if held is None or held[0] is not release:
            held = self._known[name] = (release, compute())
        found: T = held[1]
        return found


@dataclass(frozen=True, kw_only=True)
class OneShotState:
    """The released parameters."""

    w: Tensor


@dataclass(frozen=True, kw_only=True)
class OneShot(Method[OneShotState]):
    """A method for linear models that is one release on all rows.

    Attributes
    ----------
    problem : Problem or None
        What the noise was computed for; no other objective is taken.
    mechanism : Mechanism or None
        What the release is charged as, from calibration.
    """

    networks: ClassVar[bool] = False

    problem: Problem | None = solved()
    mechanism: Any = solved()

    @property
    def objective(self) -> LinearObjective:
        """The linear model that it was calibrated for."""
        return calibrated(problem=self.problem).linear

    @property
    def n_rows(self) -> int:
        """The public number of rows that it was calibrated for."""
        return calibrated(problem=self.problem).n_rows

    def init(self, w: Tensor) -> OneShotState:
        """Return the first state."""
        return OneShotState(w=w)

    def schedule(self) -> Schedule:
        """Return the one charge."""
        return ((self._batch().mechanism, 1),)

    def plan(self, state: OneShotState) -> BatchPlan:
        """Name the release."""
        return self._batch()

    def _batch(self) -> BatchPlan:
        return BatchPlan(mechanisms=(self.mechanism,))

    def step(
        self, batch: PrivateBatch, objective: Objective, state: OneShotState
    ) -> tuple[OneShotState, StepRecord]:
        """Make the release."""
        if objective != self.objective:
            raise ValueError(
                f"Expected the objective {self.objective!r}, for which the noise was "
                f"computed, got {objective!r}; build the method for the objective."
            )
        w, record = self.released(batch, state.w)
        return OneShotState(w=torch.from_numpy(w)), record

    @abstractmethod
    def released(self, batch: PrivateBatch, w: Tensor) -> tuple[FloatArray, StepRecord]:
        """Return the parameters, through the gate, from the start ``w``."""


def schedule_of(plans: Iterable[BatchPlan]) -> Schedule:
    """Return the charges of batches in their order, equal neighbors counted."""
    charges = groupby(plan.mechanism for plan in plans)
    return tuple((mechanism, len(list(run))) for mechanism, run in charges)


def with_solved_noise(method: M, budget: Budget) -> M:
    """Return the method with the ``noise_multiplier`` that uses up the budget."""

    def at(noise: float) -> M:
        return replace(method, **{"noise_multiplier": noise})

    return at(noise_for_plan(budget, lambda noise: at(noise).schedule() or ()))


@dataclass(frozen=True, kw_only=True)
class Direction:
    """A released descent direction with its public noise energy E||noise||^2."""

    vector: Tensor
    noise_sq_norm: float = 0.0

    @cached_property
    def squared_norm(self) -> float:
        """The released ``||g||^2``."""
        return float(self.vector @ self.vector)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the vectors and plain values in a field of a state."""
    if isinstance(value, Direction):
        value = value.vector, value.noise_sq_norm
    if isinstance(value, tuple):
        for part in value:
            yield from leaves(part)
    else:
        yield value


def noisy_gradient(
    batch: PrivateBatch, objective: Objective, w: Tensor, gradient: Gaussian
) -> Direction:
    """Release the noisy mean gradient; the penalty's is added after the noise.

    Each example is clipped to the sensitivity of the mechanism; the divisor is the
    public expected batch size.
    """
    query = objective.gradient_sum(w, clip=gradient.sensitivity)
    vector = batch.noisy_vector(query, gradient) / batch.expected_size
    if objective.l2:
        vector += objective.penalty_gradient(w)
    energy = objective.size * (gradient.noise_scale / batch.expected_size) ** 2
    return Direction(vector=vector, noise_sq_norm=energy)


def averaged(
    old: Direction, new: Direction, how: Literal["plain", "weighted"]
) -> Direction:
    """Average two measurements of one gradient, with the noise energy of the result."""
    share = 0.5
    total = old.noise_sq_norm + new.noise_sq_norm
    if how == "weighted" and total > 0:
        share = old.noise_sq_norm / total  # inverse variance: the noisier counts less
    energy = (1 - share) ** 2 * old.noise_sq_norm + share**2 * new.noise_sq_norm
    vector = (1 - share) * old.vector + share * new.vector
    return Direction(vector=vector, noise_sq_norm=energy)


def tail_weight(update: int, decay: float = 3.0) -> float:
    """Return the weight of the iterate after an update, from one on, in the mean.

    Polynomial-decay averaging (Shamir and Zhang 2013) with decay a:

        mean_t = (1 - (a + 1) / (t + a)) mean_(t-1) + (a + 1) / (t + a) w_t

    so that with a = 3 w_t counts as ``t (t + 1) (t + 2)`` and the last half of the
    updates has about 15/16 of the weight: a mean of the tail that need not know when
    the run ends.  Failed searches leave the iterate and the mean as they are.

    >>> tail_weight(1), tail_weight(5)
    (1.0, 0.5)
    """
    return (decay + 1) / (update + decay)


def mean_iterate(
    total: Tensor | None, point: Tensor, counted: int
) -> tuple[Tensor | None, Tensor]:
    """Return sum and mean of the last iterates, of which ``point`` is the newest.

    ``counted`` is how many of them are in the mean; before the first one the iterate
    itself takes its place.
    """
    if counted <= 0:
        return total, point
    total = point if total is None else total + point
    return total, total / counted
