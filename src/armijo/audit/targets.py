# SPDX-License-Identifier: Apache-2.0
"""What is audited: releases on two data sets between which one row is most visible.

=====================  =========================================================
``search-...``         the length of a private search
``support``            which integers the noise can be
``network-...``        sums of networks, on rows made to break their arithmetic
``step``, methods      a step and whole runs, by all that they release
``person``             a run of the additive method, by a person with many rows
``images``             a run of the classifier of images, by the image in question
=====================  =========================================================

Methods that clip gradients get short steps, so that a row which is clipped at the start
is clipped to the end; methods whose rows are bounded get a loss that is linear around
zero.  Sampling probabilities of one half go through amplification; one makes the run a
single Gaussian, for which the tighter bound holds.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from armijo import _validate
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.accountants import Accountant, PlannedAccountant, PrivacyFilter
from armijo.accounting.budget import Budget, FloatArray, Neighboring
from armijo.accounting.calibration import (
    noise_multiplier_for,
    order_for,
    renyi_noise_for_plan,
)
from armijo.accounting.mechanisms import Gaussian
from armijo.audit.games import Claim, Game
from armijo.data import fixed_point
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable
from armijo.data.feature_rows import FeatureRows, held_rows
from armijo.data.gate import BatchPlan, PrivateBatch, PrivateDataset, leaky_answer
from armijo.data.integer_rows import IntegerRows
from armijo.data.query import BoundedQuery, CertifiedSum
from armijo.data.sources import TensorRows
from armijo.images.features import Bank, FeatureSettings, feature_map
from armijo.images.reading import Pictures
from armijo.methods.additive import Additive
from armijo.methods.armijo_search import ArmijoSearch
from armijo.methods.base import (
    Direction,
    Method,
    Problem,
    StepRecord,
    calibrated,
    minimize,
)
from armijo.methods.whitened import Whitened, centered_rows, whitened_rows
from armijo.objectives.additive import AdditiveObjective
from armijo.objectives.base import Objective
from armijo.objectives.ghost.guards import Batch, Loss, blanked
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.objectives.module import ModuleObjective
from armijo.randomness import Randomness
from armijo.registry import LINEAR, make_method, parameters_of
from armijo.training.run import accountant_for

FAR = 10.0
"""The feature of the row that stays: its gradient is longer than every clip."""

FARTHER = 3 * FAR
"""The feature of the row in question: unclipped, it would outweigh the other."""

SHORT = 1e-6
"""A step that changes no gradient."""


@dataclass(frozen=True, eq=False)
class OneRelease(ABC):
    """A single release on all rows that takes the whole budget.

    Attributes
    ----------
    name : str
        What the game is called.
    budget : Budget
        The guaranteed epsilon and delta; the noise is solved for it.
    """

    name: str
    budget: Budget

    gaussian: ClassVar[bool] = False
    relation: ClassVar[Neighboring] = Neighboring.ADD_REMOVE

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given."""
        return Claim(self.budget.epsilon, self.budget.delta, self.gaussian)

    @cached_property
    def mechanism(self) -> Any:
        """What is charged: a Gaussian sum of sensitivity one."""
        noise = noise_multiplier_for(self.budget, sampling_prob=1.0, steps=1)
        return Gaussian(noise_scale=noise)

    @cached_property
    def _plan(self) -> BatchPlan:
        return BatchPlan(mechanisms=(self.mechanism,))

    def _accountant(self) -> Accountant:
        schedule = [(self._plan.mechanism, 1)]
        return PlannedAccountant(self.budget, schedule, relation=self.relation)

    def _opened(self, randomness: Randomness, n_rows: int, *rows: Any) -> PrivateBatch:
        data = PrivateDataset(
            *rows,
            n_rows=n_rows,
            accountant=self._accountant(),
            randomness=randomness,
        )
        return data.open(self._plan, label=self.name)

    @abstractmethod
    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once, with or without the row."""


_TRIES = 3
_SEARCH_CLIP = 0.1
# Scores of the three classes at the start, and what a step of one takes from them: the
# second class, which is wrong, loses its lead; the third, wrong too, gets one later.
_SEARCHED = torch.tensor([0.0, 1.0, -3.0], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class SearchGame(OneRelease):
    """NoisyBTLS: the length of a private search as the whole release.

    One row decides: the long steps harm it by more than its bound and the last, short
    one helps it by more than its bound.  With the row, long steps fail more often and
    the last one passes more often, which is the worst case of AboveThreshold.  A margin
    loss falls or rises all along a line; three classes make a loss that falls first and
    then rises.
    """

    @cached_property
    def _search(self) -> ArmijoSearch:
        """The search: candidates four, two and one, hardly an Armijo term."""
        kind: Literal["laplace", "gaussian"]
        kind = "laplace" if self.name == "search-laplace" else "gaussian"
        return ArmijoSearch(
            kind=kind, slope=1e-3, shrink=0.5, max_tries=_TRIES, form="difference"
        )

    @cached_property
    def mechanism(self) -> AboveThreshold:
        """What the search costs: the whole budget."""
        made = self._search.mechanism
        noise = renyi_noise_for_plan(self.budget, lambda z: [(made(1 / z), 1)])
        return made(1 / noise)

    @cached_property
    def _order(self) -> int:
        return order_for(self.budget, self.mechanism)

    def _accountant(self) -> Accountant:
        return PrivacyFilter(self.budget, order=self._order)

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Search once; the answer is a vector with a one at the chosen candidate."""
        count = int(present)
        batch = self._opened(randomness, 1, np.full((count, 1), FAR), np.zeros(count))
        choice = self._search.choose(
            batch,
            LinearObjective(
                loss="softmax", n_features=1, n_classes=3, fit_intercept=False, l2=0.0
            ),
            _SEARCHED,
            Direction(vector=_SEARCHED),
            mechanism=self.mechanism,
            initial_step=2.0 ** (_TRIES - 1),
            loss_clip=1.0,
            max_grad_norm=_SEARCH_CLIP,
        )
        # One-hot: numbers that a linear discriminant can order freely.
        return np.eye(_TRIES + 1)[choice.tries - 1 if choice.step_size else _TRIES]


IntArray = NDArray[np.int64]

_NEIGHBORS = 4  # angles on each side of the nearest one: arctan and sine err by less
_SIZE = 1024
_ENTRY = 2.0**-6  # a whole number of steps; the norm of such a row is one half


def on_rays(x: IntArray, y: IntArray) -> NDArray[np.bool_]:
    """Say of pairs of integers whether an angle in single precision leads to them.

    That is so if some radius times its cosine rounds to ``x`` and times its sine to
    ``y``.

    Examples
    --------
    >>> on_rays(np.array([2**40, 2**40]), np.array([2**40, 2**40 // 3])).tolist()
    [True, False]
    """
    angle = np.arctan2(y, x).astype(np.float32)
    below = above = angle
    reached = _leads(angle, x, y)
    for _ in range(_NEIGHBORS):
        below = np.nextafter(below, np.float32(-np.inf))
        above = np.nextafter(above, np.float32(np.inf))
        reached |= _leads(below, x, y) | _leads(above, x, y)
    return reached


def _leads(angle: NDArray[np.float32], x: IntArray, y: IntArray) -> NDArray[np.bool_]:
    """Say whether some radius meets both integers, within the error of its product."""
    low, high = _radii(np.cos(angle), x)
    start, end = _radii(np.sin(angle), y)
    return np.maximum(low, start) <= np.minimum(high, end) * (1 + 2.0**-50)


def _radii(
    direction: NDArray[np.float32], number: IntArray
) -> tuple[FloatArray, FloatArray]:
    """Return between which radii a coordinate rounds to the number."""
    size, sign = np.abs(direction).astype(float), np.where(direction < 0, -1, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = (number * sign - 0.5) / size, (number * sign + 0.5) / size
    # Along an axis every radius leads to zero, and none to anything else.
    still = size == 0
    low = np.where(still, np.where(number == 0, 0.0, np.inf), low)
    return np.maximum(low, 0.0), np.where(still, np.inf, high)


def shares_on_rays(noise: IntArray) -> FloatArray:
    """Return which shares of the pairs of a vector are on rays.

    Pairs are neighbors, or number with number of the two halves, as samplers lay them
    out.
    """
    even = noise[: len(noise) // 2 * 2]
    layouts = even.reshape(-1, 2).T, even.reshape(2, -1)
    return np.array([np.mean(on_rays(x, y)) for x, y in layouts])


@dataclass(frozen=True, eq=False)
class SupportGame(OneRelease):
    """The support of the noise: which integers can occur at all.

    Noise on a lattice hides a sum only if every integer can occur.  A sampler that
    makes two numbers of a radius and an angle in single precision (Box and Muller 1958)
    leaves most pairs of integers out: they lie between the rays of the angles that
    there are.  Whoever knows what the sum would be with the row and without it
    subtracts both from the release, and only the right one leaves pairs on rays
    (Mironov 2012, for pairs).
    """

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once; told are the shares on rays without the row and with it."""
        batch = self._opened(randomness, 1, np.full((int(present), _SIZE), _ENTRY))
        query = BoundedQuery(contributions=lambda rows: rows.X, bound=1.0)
        noisy = batch.noisy_sum(query, self.mechanism)
        steps = np.rint(noisy * fixed_point.STEPS).astype(np.int64)
        row = round(_ENTRY * fixed_point.STEPS)
        return np.concatenate([shares_on_rays(steps), shares_on_rays(steps - row)])


class NetworkAttack(NamedTuple):
    """A module, its loss, and rows of which the last is the one in question."""

    module: nn.Module
    loss: Loss
    inputs: Tensor
    targets: Tensor


def _dot(output: Tensor, target: Tensor) -> Tensor:
    """Let targets be the output gradients: an attacker's choice."""
    return (output * target).flatten(1).sum(1)


def alike_rounding() -> NetworkAttack:
    """Let products of places round alike: a norm made of them is far too small."""
    places, width = 128, 384
    signs = torch.where(torch.arange(width) % 2 == 0, 1.0, -1.0)
    row = (1.7e-4 * signs).repeat(places, 1)
    row[:, ::192] = signs[:places, None]  # cancels over places; the rest adds up
    inputs = torch.stack([torch.zeros_like(row), row])
    module = nn.Linear(width, 8, bias=False)
    return NetworkAttack(module, _dot, inputs, torch.full((2, places, 8), 100.0))


def cancelling_terms() -> NetworkAttack:
    """Let two terms of a row cancel: a sum of raw terms forgets the other rows."""
    inputs, targets = torch.zeros(65, 3).long(), torch.ones(65, 3, 2)
    inputs[-1, 2] = 1
    targets[-1] = torch.tensor([2.0**40, -(2.0**40), 10.0])[:, None]
    return NetworkAttack(nn.Embedding(3, 2), _dot, inputs, targets)


def huge_contents() -> NetworkAttack:
    """Put a row of 1e30 beside small ones, which must not notice it."""
    torch.manual_seed(0)
    inputs = torch.rand(65, 20)
    inputs[-1] = 1e30
    module = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    return NetworkAttack(module, _dot, inputs, torch.randn(65, 4))


NETWORK_ATTACKS: dict[str, Callable[[], NetworkAttack]] = {
    "network-norms": alike_rounding,
    "network-cancelling": cancelling_terms,
    "network-contents": huge_contents,
}


@dataclass(frozen=True, eq=False)
class NetworkGame(OneRelease):
    """The noisy gradient sum of a module, with the row or with a blank in its place.

    The row is chosen against one step of the computation: a norm that is estimated by
    products which round alike, terms that cancel in the row and swallow what others
    add, contents that a kernel or a branch might let reach other rows.  The attacker
    knows all other rows, so both exact sums, and looks where they differ.
    """

    gaussian: ClassVar[bool] = True
    relation: ClassVar[Neighboring] = Neighboring.ZERO_OUT

    @cached_property
    def _attack(self) -> NetworkAttack:
        return NETWORK_ATTACKS[self.name]()

    @cached_property
    def _objective(self) -> ModuleObjective:
        objective = ModuleObjective(self._attack.module, self._attack.loss)
        zeros = self._batch(False)
        objective.check(zeros.inputs[:2], zeros.targets[:2])
        return objective

    @property
    def _query(self) -> BoundedQuery:
        return self._objective.gradient_sum(self._objective.start(), clip=1.0)

    def _batch(self, present: bool) -> Batch:
        """Return all rows, the last one a blank unless it is present."""
        batch = Batch(self._attack.inputs, self._attack.targets)
        blank = torch.zeros(len(batch.inputs), dtype=torch.bool)
        blank[-1] = not present
        return blanked(batch, blank)

    def _exact_sum(self, present: bool) -> FloatArray:
        """Return the sum without noise, as the machine computes it."""
        rows = TensorRows(*self._batch(present))
        answer = leaky_answer(rows, self._query.contributions)
        if not isinstance(answer, CertifiedSum):
            raise TypeError(f"Expected a CertifiedSum, got {type(answer).__name__}.")
        return answer.integers(24).double().numpy() * 2.0**-24

    def direction(self) -> FloatArray:
        """Return where the two exact sums differ, as a unit vector."""
        gap = self._exact_sum(True) - self._exact_sum(False)
        return gap / max(float(np.linalg.norm(gap)), 1e-300)

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Release once; told is how far the sum lies along the known difference."""
        rows = TensorRows(*self._batch(present))
        batch = self._opened(randomness, len(self._attack.inputs), rows)
        noisy = batch.noisy_vector(self._query, self.mechanism).double().numpy()
        return np.array([float(noisy @ self.direction())])


MOST_BATCHES = 16
"""Ends a run that its accountant never ends."""

_OBSERVED = 2  # batches of which more than the end is looked at
_STEP_NUMBERS = 3
_EXTRAS = ("radius", "step_size", "loss_clip")  # of a state, beside its weights

_ROWS_OF_PERSON = 20
Table = tuple[FloatArray, FloatArray]


Steps = Iterable[tuple[Any, StepRecord]]


def observed(start: Any, run: Steps) -> FloatArray:
    """Return the released numbers of a run: its first batches, its length, its end."""
    state, steps, count = start, [], 0
    for new, record in run:
        steps.append(_step(state, new, record) if count < _OBSERVED else [])
        state, count = new, count + 1
    steps += [[0.0] * _STEP_NUMBERS] * max(_OBSERVED - count, 0)
    extras = [float(getattr(state, name, None) or 0.0) for name in _EXTRAS]
    counts = getattr(state, "counts", ())  # of the additive method
    return np.array([*chain(*steps), count, *state.w.tolist(), *extras, *counts])


def _step(before: Any, after: Any, record: StepRecord) -> list[float]:
    """Return the direction of a step and how long the search for its size was.

    A search is easier along the pull of the row, hence with a sign.
    """
    pending = getattr(after, "pending", None)
    moved = before.w - after.w if pending is None else pending.vector
    direction = math.copysign(record.direction_norm or 0.0, float(moved[0]))
    sign = math.copysign(1.0, direction)
    return [direction, sign * record.tries, sign * (record.step_size == 0)]


@dataclass(frozen=True, kw_only=True, eq=False)
class RunGame:
    """A run, observed by all that it releases: the loop, gate and accountant of a fit.

    Rows have one feature and no intercept, so that a gradient is one number.  The row
    in question pulls against a row that stays (none where rows are sampled).  Both are
    far longer than the clips, and steps are so short that they stay so: each query then
    moves by its whole sensitivity at every step, which is what the accountant reckons
    with.

    Attributes
    ----------
    name : str
        What the game is called.
    budget : Budget
        The guaranteed epsilon and delta of the run.
    objective : Objective
        The problem.
    settings : Method
        The method.
    tables : tuple
        Rows without and with the row in question, as the gate takes them.
    n_rows : int
        The public number of rows, the same for both tables.
    gaussian, pure : bool
        Whether the trade-off of the run is Gaussian; whether delta is not used.
    most_batches : int
        Where a run is cut.
    told : callable
        What is looked at of a run, from its first state and its steps.
    """

    name: str
    budget: Budget
    objective: Objective
    settings: Method[Any]
    tables: tuple[tuple[Any, ...], tuple[Any, ...]]
    n_rows: int
    gaussian: bool = False
    pure: bool = False
    most_batches: int = MOST_BATCHES
    told: Callable[[Any, Steps], FloatArray] = observed

    @property
    def claim(self) -> Claim:
        """The budget that the accountant was given."""
        delta = 0.0 if self.pure else self.budget.delta
        return Claim(self.budget.epsilon, delta, self.gaussian)

    @cached_property
    def _method(self) -> Method[Any]:
        problem = Problem(objective=self.objective, n_rows=self.n_rows)
        return self.settings.calibrate(self.budget, problem)

    @cached_property
    def _start(self) -> Any:
        return self._method.init(self.objective.start())

    def play(self, present: bool, randomness: Randomness) -> FloatArray:
        """Run to the end of the budget and return what was released."""
        relation = self.settings.relation or Neighboring.ADD_REMOVE
        data = PrivateDataset(
            *self.tables[present],
            n_rows=self.n_rows,
            accountant=accountant_for(
                self._method, self._start, self.budget, relation=relation
            ),
            randomness=randomness,
        )
        most = self.most_batches
        run = minimize(
            self.objective, data, self._method, self._start, max_batches=most
        )
        return self.told(self._start, run)


_LINE_SEARCH: dict[str, Any] = {
    "expected_steps": 2,
    "max_grad_norm": 1.0,
    "search_form": "difference",
    "max_tries": 2,
    "initial_step": SHORT,
}
_BOUNDED: dict[str, Any] = {"data_norm": 1.0}
RUNS: dict[str, dict[str, Any]] = {
    "blsgd": {**_LINE_SEARCH, "sampling_prob": 0.5},
    "blsgd-ac": {**_LINE_SEARCH, "sampling_prob": 0.5},
    "blgd": _LINE_SEARCH,
    "auto": {"steps": 1, "data_norm": FAR},
    # Every step takes the loss of a row to nothing or to the clip.
    "agd": {"splits": 2, "max_step": 1.0, "max_grad_norm": 1.0, "loss_clip": 1.0},
    "sgd": {"sampling_prob": 0.5, "steps": 2, "step_size": SHORT, "max_grad_norm": 1.0},
    # An eps far above every gradient makes Adam linear in them.
    "adam": {"sampling_prob": 1.0, "steps": 2, "max_grad_norm": 1.0, "eps": 1 / SHORT},
    "outpert-rsgd": {**_BOUNDED, "epochs": 1, "batch_size": 1},
    "outpert-gd": {**_BOUNDED, "steps": 1},
    "objpert": _BOUNDED,
    "objpert-kst": _BOUNDED,
    "objpert-pure": _BOUNDED,
    "amp": _BOUNDED,
    "privgene": {"steps": 1},
    "hyfree": {
        "sampling_prob": 1.0,
        "steps": 2,
        "reset_every": 1,
        "step_size": SHORT,
        "stability": SHORT,
        "variant": "sgd",
    },
    "sgd-tuned": {
        "sampling_prob": 1.0,
        "steps": 1,
        "step_sizes": (SHORT,),
        "max_grad_norms": (1.0,),
        "repetitions": 1.5,
    },
    "majority": {},
}
"""Parameters of methods in their games; others have their defaults there."""

PRIVATE = tuple(name for name, entry in LINEAR.items() if entry.kind.private)
"""The methods that give a guarantee."""

GAUSSIAN = frozenset({"auto", "adam", "outpert-gd", "hyfree"})
"""Runs that are one Gaussian release: on all rows, with Gaussian noise only."""

PURE = frozenset({"objpert-pure", "majority"})
"""Runs that do not use delta."""


def run_game(
    method: str, budget: Budget, changed: Mapping[str, Any] | None = None
) -> RunGame:
    """Return the game of whole runs of a method, some of its parameters changed."""
    _validate.choice(PRIVATE, method=method)
    bounded = _BOUNDED if "data_norm" in parameters_of(method) else {}
    usual = RUNS.get(method, bounded)
    settings = make_method(method, {**usual, **(changed or {})})
    tables = _votes() if method == "majority" else _tables(settings)
    return RunGame(
        name=method,
        budget=budget,
        objective=LinearObjective(
            loss="huber" if settings.smooth else "logistic",
            n_features=1,
            fit_intercept=method == "majority",
            l2=1e-3 if settings.smooth else 0.0,
        ),
        settings=settings,
        tables=tables,
        n_rows=len(tables[1][0]),
        gaussian=method in GAUSSIAN,
        pure=method in PURE,
    )


def _tables(settings: Method[Any]) -> tuple[Table, Table]:
    """Return one row, and the same with a row that pulls the other way.

    Where rows are exchanged, it is exchanged for one that pulls along.  Where they are
    sampled, there is no other row: whether that was drawn would only blur the sums.
    """
    if settings.relation is Neighboring.REPLACE_ONE:
        return _table(-FAR, -FARTHER), _table(-FAR, FARTHER)
    if getattr(settings, "sampling_prob", 1.0) < 1:
        return _table(), _table(FARTHER)
    return _table(-FAR), _table(-FAR, FARTHER)


def _table(*features: float) -> Table:
    return np.array(features, dtype=float)[:, None], np.ones(len(features))


def _votes() -> tuple[Table, Table]:
    return (np.zeros((1, 1)), -np.ones(1)), (np.zeros((2, 1)), np.array([-1.0, 1.0]))


def person_game(budget: Budget) -> RunGame:
    """Return the game of the additive method, with a person of many rows or without.

    All rows of the person are of one class and one level, and weigh one together; who
    stays has one row of the other class and level.  So counts, gradients and drops of
    the person all point one way, as far as they may.  All releases are one Gaussian.
    """
    objective = AdditiveObjective(columns=(CategoryColumn(name="x", n_levels=2),))

    def rows(present: bool) -> tuple[CodedRows]:
        person = np.repeat([0, 1], [1, _ROWS_OF_PERSON * present])
        weight = 1.0 / np.bincount(person)[person]
        labels = np.where(person == 0, -1.0, 1.0)
        return (CodedRows(CodedTable(objective.columns, (person,)), labels, weight),)

    return RunGame(
        name="person",
        budget=budget,
        objective=objective,
        settings=Additive(),
        tables=(rows(False), rows(True)),
        n_rows=2,
        gaussian=True,
        most_batches=1000,
    )


SMALL_FEATURES = FeatureSettings(
    side=16,
    banks=(Bank(patch=5, filters=64, grid=2),),
    components=64,
    synthetic=256,
)
"""Of images that are audited: made in a second."""


def image_game(budget: Budget) -> RunGame:
    """Return the game of the classifier of images, with one image or without.

    Who stays has an image of the other class and of other features.  Rows have norm one
    and gradients are clipped to a fraction of their length, so that the image moves
    mean, second moments and every gradient by all that it may.  Told is what the
    releases say of it: it is put through the released coordinates.
    """
    wave = 0.5 + 0.4 * np.sin(1.2 * np.arange(16))
    upright = np.broadcast_to(wave, (16, 16))
    pictures = Pictures(np.stack([upright, upright.T]))
    features = feature_map(SMALL_FEATURES).integers(pictures)
    size = features.shape[1]

    def rows(count: int) -> tuple[FeatureRows]:
        known = np.ones(count, dtype=bool)
        return (FeatureRows.of(features[:count], np.arange(count), known),)

    return RunGame(
        name="images",
        budget=budget,
        objective=LinearObjective(loss=SOFTMAX, n_features=size, n_classes=2, l2=0.0),
        settings=Whitened(steps=8),
        tables=(rows(1), rows(2)),
        n_rows=2,
        gaussian=True,
        most_batches=1000,
        told=partial(_of_image, held_rows(features[1:], np.ones(1))),
    )


def _of_image(image: IntegerRows, start: Any, run: Steps) -> FloatArray:
    """Return mean, second moments and scores at the image, from the last state."""
    *_, (state, _) = run
    center = calibrated(center=state.center).numpy()
    centered = centered_rows(image, center)
    size = len(center)
    whitening = calibrated(whitening=state.whitening).numpy().reshape(size, size)
    row, unit = (found.block(slice(1))[0] for found in (image, centered))
    unit = unit / np.linalg.norm(unit)
    inside = whitened_rows(centered, whitening).block(slice(1))[0]
    weights = state.w.numpy().reshape(2, -1)
    scores = weights[:, :size] @ (inside / np.linalg.norm(inside)) + weights[:, -1]
    margin = scores[1] - scores[0]
    told = [row @ center, unit @ whitening @ unit, *scores, margin]
    return np.array(told, dtype=float)


def step_game(budget: Budget) -> RunGame:
    """Return the game of one DP-BLSGD step: gradient and search on one batch."""
    whole = run_game("blsgd", budget, {"expected_steps": 1})
    return replace(whole, name="step", most_batches=1)


GAMES: dict[str, Callable[[Budget], Game]] = {
    **{
        name: partial(SearchGame, name)
        for name in ("search-laplace", "search-gaussian")
    },
    "support": partial(SupportGame, "support"),
    "person": person_game,
    "images": image_game,
    **{name: partial(NetworkGame, name) for name in NETWORK_ATTACKS},
    "step": step_game,
    **{method: partial(run_game, method) for method in PRIVATE},
}
"""Two-dataset games by name."""
