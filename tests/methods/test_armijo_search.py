# SPDX-License-Identifier: Apache-2.0
"""NoisyBTLS: candidates, public offsets and bounds, laziness, and its exact law."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from armijo.accounting.above_threshold import AboveThreshold
from armijo.data.fixed_point import number_sum
from armijo.data.gate import BatchPlan, PrivateBatch
from armijo.data.query import BoundedQuery, Rows
from armijo.methods.armijo_search import ArmijoSearch, StepChoice
from armijo.methods.base import Direction
from armijo.objectives import LinearObjective
from armijo.randomness import Randomness


def vector(*values):
    return torch.tensor(values, dtype=torch.float64)


def linear(features=2, **settings):
    return LinearObjective(
        loss="logistic", n_features=features, fit_intercept=False, **settings
    )


class RecordingBatch:
    """Answers with a scripted index and keeps what it was asked on the way."""

    def __init__(self, answer=None):
        self.answer = answer
        self.asked = []
        self.mechanism = None

    def first_above(self, queries, mechanism):
        self.mechanism = mechanism
        for index, query in enumerate(queries):
            self.asked.append(query)
            if index == self.answer:
                return index
        return None


class CountingObjective:
    """Constant loss drop for each row, counted when a candidate is evaluated."""

    size = 2

    def __init__(self, drop_at=lambda step_size: 0.0):
        self.drop_at = drop_at
        self.evaluated = []

    def loss_drop_sum(self, w, step, step_size, *, form, clip):
        def contributions(rows):
            self.evaluated.append(step_size)
            return np.full(rows.size, self.drop_at(step_size))

        return BoundedQuery(contributions=contributions, bound=clip)

    def penalty_drop(self, w, step):
        return lambda eta: 0.0


def choose(search, batch, objective, *, w=None, direction=None, **settings):
    asked = {"initial_step": 2.0, "loss_clip": 1.0, "max_grad_norm": 3.0}
    batch.expected_size = settings.pop("batch_size", 50.0)
    asked.update(settings)
    mechanism = asked.pop("mechanism", search.mechanism(1.0))
    return search.choose(
        batch,
        objective,
        vector(0, 0) if w is None else w,
        Direction(vector=vector(3, 4)) if direction is None else direction,
        mechanism=mechanism,
        **asked,
    )


def open_batch(X, y, mechanism, randomness):
    plan = BatchPlan(mechanisms=(mechanism,))
    return PrivateBatch(Rows(X, y), plan, randomness, n_rows=len(X))


class TestCandidates:
    def test_geometric(self):
        found = ArmijoSearch(shrink=0.5, max_tries=4).candidates(2.0)
        assert found == [2.0, 1.0, 0.5, 0.25]

    def test_the_paper(self):
        found = ArmijoSearch().candidates(2.0)
        assert len(found) == 20
        assert found[1] == 1.6
        assert found[-1] == pytest.approx(0.0288, rel=1e-3)

    @pytest.mark.parametrize("answer", [0, 1, 7, 19])
    def test_chosen_one_and_number_of_tries(self, answer):
        batch = RecordingBatch(answer)
        found = choose(ArmijoSearch(), batch, CountingObjective())
        assert found == StepChoice(2.0 * 0.8**answer, answer + 1)
        assert len(batch.asked) == answer + 1

    def test_none_is_zero(self):
        assert choose(
            ArmijoSearch(max_tries=7), RecordingBatch(), CountingObjective()
        ) == StepChoice(0.0, 7)

    def test_fallback_is_one_factor_below_the_last(self):
        search = ArmijoSearch(max_tries=7, shrink=0.5, fallback=True)
        found = choose(search, RecordingBatch(), CountingObjective())
        assert found == StepChoice(2.0 * 0.5**7, 7)
        assert found.step_size == search.candidates(2.0)[-1] * 0.5


class TestMechanism:
    def test_laplace(self):
        found = ArmijoSearch(max_tries=9).mechanism(0.4)
        assert found == AboveThreshold.laplace(0.4, 9)
        assert (found.threshold_scale, found.query_scale) == (5.0, 10.0)

    def test_gaussian_gets_the_same_zcdp(self):
        found = ArmijoSearch(kind="gaussian", max_tries=9).mechanism(0.4)
        assert found == AboveThreshold.gaussian(0.4**2 / 2, 9)
        assert found.query_scale**2 == pytest.approx(3 / 0.08)

    def test_is_passed_on(self):
        batch = RecordingBatch()
        mechanism = AboveThreshold.laplace(0.3, 20)
        choose(ArmijoSearch(), batch, CountingObjective(), mechanism=mechanism)
        assert batch.mechanism is mechanism


class TestBounds:
    @pytest.mark.parametrize("l2", [0.0, 10.0])
    def test_losses_have_the_loss_clip(self, l2):
        batch = RecordingBatch()
        objective = linear(l2=l2)
        choose(ArmijoSearch(form="loss"), batch, objective, loss_clip=0.7)
        assert [query.bound for query in batch.asked] == [0.7] * 20

    @pytest.mark.parametrize("l2", [0.0, 10.0])
    def test_differences_have_the_length_of_the_step(self, l2):
        """Sensitivity eta C ||d|| of each candidate, with ||(3, 4)|| = 5."""
        batch = RecordingBatch()
        objective = linear(l2=l2)
        search = ArmijoSearch(form="difference", shrink=0.5, max_tries=3)
        choose(search, batch, objective, max_grad_norm=0.25)
        assert [query.bound for query in batch.asked] == [2.5, 1.25, 0.625]

    def test_objective_is_asked_in_the_same_form_and_bound(self):
        seen = []

        class Spy(CountingObjective):
            def loss_drop_sum(self, w, step, step_size, **asked):
                seen.append((w.tolist(), step.tolist(), step_size, asked))
                return super().loss_drop_sum(w, step, step_size, **asked)

        search = ArmijoSearch(form="difference", shrink=0.5, max_tries=2)
        batch = RecordingBatch()
        choose(search, batch, Spy(), w=vector(1, 2))
        assert [query.offset for query in batch.asked] == [-1250.0, -625.0]
        assert seen == [
            ([1.0, 2.0], [3.0, 4.0], eta, {"form": "difference", "clip": 15.0 * eta})
            for eta in (2.0, 1.0)
        ]

    def test_a_row_that_is_not_finite_is_left_out_of_the_search(self):
        """Margin +inf has loss 0; inf - inf after the step must not look like one."""
        batch = RecordingBatch(answer=0)
        objective = linear()
        direction = Direction(vector=vector(1, 0))
        choose(ArmijoSearch(), batch, objective, w=vector(1, 0), direction=direction)
        rows = Rows(np.array([[math.inf, 1.0]]), np.ones(1))
        assert number_sum(batch.asked[0].contributions(rows), 1.0) == 0

    @pytest.mark.parametrize("kind", ["laplace", "gaussian"])
    def test_a_direction_of_zero_is_searched_like_any_other(self, kind):
        search = ArmijoSearch(form="difference", kind=kind)
        objective = linear()
        mechanism = search.mechanism(1.0)
        randomness = Randomness(seed=1, insecure_deterministic=True).for_charge(0)
        batch = open_batch(np.ones((3, 2)), np.ones(3), mechanism, randomness)
        nothing = Direction(vector=vector(0, 0))
        found = choose(search, batch, objective, direction=nothing)
        assert 1 <= found.tries <= 20


class TestOffset:
    """w = (3, 4), d = (1, 0), eta = 2, L = 50, mu = 0.1: L (P(w) - P(w - 2d)) = 20."""

    def offsets(self, *, l2=0.1, noise_sq_norm=0.0, **settings):
        batch = RecordingBatch()
        objective = linear(l2=l2)
        direction = Direction(vector=vector(1, 0), noise_sq_norm=noise_sq_norm)
        search = ArmijoSearch(shrink=0.5, max_tries=2, **settings)
        choose(search, batch, objective, w=vector(3, 4), direction=direction)
        return [query.offset for query in batch.asked]

    def test_scaled(self):
        # 50 * 0.05 * (25 - 17) - 0.5 * 2 * 50; then 50 * 0.05 * (25 - 20) - 0.5 * 50
        assert self.offsets() == pytest.approx([20.0 - 50.0, 12.5 - 25.0])

    def test_as_published(self):
        assert self.offsets(armijo_scaling="as-published") == pytest.approx(
            [19.0, 12.0]
        )

    def test_without_penalty(self):
        assert self.offsets(l2=0.0) == pytest.approx([-50.0, -25.0])

    def test_slope(self):
        assert self.offsets(slope=0.1) == pytest.approx([10.0, 7.5])

    def test_noise_energy_is_subtracted_on_request_only(self):
        given_energy = {"noise_sq_norm": 0.25, "l2": 0.0}
        assert self.offsets(**given_energy) == pytest.approx([-50.0, -25.0])
        found = self.offsets(subtract_noise=True, **given_energy)
        assert found == pytest.approx([-37.5, -18.75])

    def test_corrected_norm_is_never_negative(self):
        found = self.offsets(subtract_noise=True, noise_sq_norm=5.0)
        assert found == pytest.approx([20.0, 12.5])

    @given(
        w=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
        d=st.lists(st.floats(-5, 5), min_size=3, max_size=3),
        l2=st.floats(0, 2),
        size=st.floats(1, 1e4),
    )
    def test_is_the_public_part_of_the_armijo_test(self, w, d, l2, size):
        batch = RecordingBatch()
        objective = linear(3, l2=l2)
        choose(
            ArmijoSearch(),
            batch,
            objective,
            w=vector(*w),
            direction=Direction(vector=vector(*d)),
            batch_size=size,
        )
        w, d = np.array(w), np.array(d)
        for eta, query in zip(ArmijoSearch().candidates(2.0), batch.asked, strict=True):
            kept = l2 / 2 * (w @ w - (w - eta * d) @ (w - eta * d))
            expected = size * (kept - 0.5 * eta * (d @ d))
            assert query.offset == pytest.approx(expected, rel=1e-9, abs=1e-7)


class TestLaziness:
    def test_stops_where_the_test_passes(self):
        """Without noise the first drop that reaches eta L ||d||^2 / 2 is taken."""
        search = ArmijoSearch(shrink=0.5, max_tries=6)
        objective = CountingObjective(lambda eta: 1.0 if eta <= 0.3 else -1.0)
        off = search.mechanism(math.inf)
        batch = open_batch(np.zeros((10, 2)), None, off, Randomness())
        direction = Direction(vector=vector(1, 0))
        found = choose(
            search, batch, objective, direction=direction, batch_size=10, mechanism=off
        )
        assert found == StepChoice(0.25, 4)
        assert objective.evaluated == [2.0, 1.0, 0.5, 0.25]

    @pytest.mark.parametrize("kind", ["laplace", "gaussian"])
    def test_a_candidate_not_reached_is_not_evaluated(self, kind):
        search = ArmijoSearch(kind=kind, max_tries=40)
        mechanism = search.mechanism(0.5)
        randomness = Randomness(seed=2, insecure_deterministic=True).for_charge(0)
        tries = set()
        for _ in range(30):
            objective = CountingObjective(lambda eta: -1.0)
            batch = open_batch(np.zeros((5, 2)), None, mechanism, randomness)
            found = choose(
                search, batch, objective, batch_size=1e-3, mechanism=mechanism
            )
            assert len(objective.evaluated) == found.tries
            tries.add(found.tries)
        assert len(tries) > 3

    def test_the_cap_holds(self):
        objective = CountingObjective(lambda eta: -1.0)
        search = ArmijoSearch(max_tries=3)
        off = search.mechanism(math.inf)
        batch = open_batch(np.zeros((5, 2)), None, off, Randomness())
        assert choose(search, batch, objective, mechanism=off) == StepChoice(0.0, 3)
        assert len(objective.evaluated) == 3


class Law:
    """A tiny problem and the exact law of the index that a search returns."""

    X = np.array([[1.0, 0.2], [-0.4, 1.0], [0.3, -0.8]])
    y = np.array([1.0, -1.0, 1.0])
    w, d = np.array([0.2, -0.3]), np.array([-0.6, 0.5])
    batch_size, initial_step, clips = 3.0, 2.0, {"loss_clip": 0.6, "max_grad_norm": 0.8}

    def __init__(self, search):
        self.search = search
        self.objective = linear(l2=0.1)

    def queries(self):
        """Each query over its own sensitivity."""
        found = []
        margins = self.y * (self.X @ self.w)
        for eta in self.search.candidates(self.initial_step):
            moved = self.w - eta * self.d
            before = np.log1p(np.exp(-margins))
            after = np.log1p(np.exp(-self.y * (self.X @ moved)))
            clip = self.clips["loss_clip"]
            if self.search.form == "difference":
                clip = eta * self.clips["max_grad_norm"] * np.linalg.norm(self.d)
                drop = np.clip(before - after, -clip, clip).sum()
            else:
                drop = (np.minimum(before, clip) - np.minimum(after, clip)).sum()
            penalty = 0.05 * (self.w @ self.w - moved @ moved)
            public = penalty - 0.5 * eta * (self.d @ self.d)
            found.append((drop + self.batch_size * public) / clip)
        return np.array(found)

    def exact(self, mechanism, widen=1.0):
        """Integrate over the threshold; the last entry is "none"."""
        family = stats.laplace if mechanism.kind == "laplace" else stats.norm
        spread = 40 if mechanism.kind == "laplace" else 9
        z = np.linspace(-spread, spread, 20001) * mechanism.threshold_scale
        weights = family.pdf(z, scale=mechanism.threshold_scale) * (z[1] - z[0])
        scale = mechanism.query_scale * widen
        below = family.cdf(z[:, None] - self.queries(), scale=scale)
        reached = np.cumprod(np.column_stack([np.ones(z.size), below]), axis=1)
        stops = np.column_stack([reached[:, :-1] * (1 - below), reached[:, -1]])
        return weights @ stops

    def counts(self, mechanism, runs):
        randomness = Randomness(seed=11, insecure_deterministic=True).for_charge(0)
        counts = np.zeros(self.search.max_tries + 1, dtype=int)
        direction = Direction(vector=torch.from_numpy(self.d))
        for _ in range(runs):
            batch = open_batch(self.X, self.y, mechanism, randomness)
            batch.expected_size = self.batch_size
            found = self.search.choose(
                batch,
                self.objective,
                torch.from_numpy(self.w),
                direction,
                mechanism=mechanism,
                initial_step=self.initial_step,
                **self.clips,
            )
            counts[found.tries - 1 if found.step_size else -1] += 1
        return counts


@pytest.mark.parametrize("form", ["loss", "difference"])
@pytest.mark.parametrize("kind", ["laplace", "gaussian"])
def test_law_of_the_chosen_index(kind, form):
    search = ArmijoSearch(kind=kind, form=form, max_tries=4, shrink=0.5)
    law = Law(search)
    mechanism = search.mechanism(4.0 if kind == "laplace" else 2.0)
    expected = law.exact(mechanism)
    assert expected.sum() == pytest.approx(1.0, abs=1e-5)
    assert expected.min() > 0.02
    runs = 1500
    counts = law.counts(mechanism, runs)
    assert stats.chisquare(counts, expected / expected.sum() * runs).pvalue > 1e-4
    wrong = law.exact(mechanism, widen=3.0)
    assert stats.chisquare(counts, wrong / wrong.sum() * runs).pvalue < 1e-4
