# SPDX-License-Identifier: Apache-2.0
"""The additive method: its charges, its limits, and runs that are cut or odd."""

import math
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from scipy.special import log_expit
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.data.gate import PrivateDataset
from armijo.errors import ArmijoError
from armijo.methods.additive import Additive
from armijo.methods.base import Problem, minimize
from armijo.objectives import LinearObjective
from armijo.objectives.additive import AdditiveObjective
from armijo.randomness import Randomness
from armijo.registry import make_method
from armijo.training.run import Run, RunFiles
from tests.data.gate_doubles import FreeAccountant
from tests.objectives.table_doubles import (
    BUDGET,
    COLUMNS,
    LOSSES,
    objective_of,
    released,
    table_of,
)

BOUNDED = (NumericColumn(name="x", low=0.0, high=1.0), COLUMNS[3])


def calibrated(objective, n_rows=5000, budget=BUDGET, **settings):
    problem = Problem(objective=objective, n_rows=n_rows)
    return Additive(**settings).calibrate(budget, problem)


def delta_of(epsilon, mu):
    """Return delta of a Gaussian (Balle and Wang 2018, Theorem 8)."""
    first = norm.cdf(mu / 2 - epsilon / mu)
    return first - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def releases(method):
    return list(chain(*(plan.mechanisms for plan in method.plans())))


class TestCharges:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("columns", [COLUMNS, BOUNDED])
    @pytest.mark.parametrize("pairs", [None, True, False])
    @pytest.mark.parametrize("epsilon", [0.1, 4.0])
    def test_all_releases_are_one_gaussian_of_the_budget(
        self, loss, columns, pairs, epsilon
    ):
        budget = Budget(epsilon=epsilon, delta=1e-6)
        for n_rows in (10, 10**6):
            method = calibrated(
                objective_of(loss, columns), n_rows, budget, pairs=pairs
            )
            squares = [(g.sensitivity / g.noise_scale) ** 2 for g in releases(method)]
            mu = math.sqrt(math.fsum(squares))
            assert mu == pytest.approx(1 / method.noise_multiplier, rel=1e-12)
            assert delta_of(epsilon, mu) <= budget.delta * (1 + 1e-9)
            assert delta_of(epsilon, mu) >= budget.delta * 0.99

    def test_many_columns_have_no_second_moments_and_the_same_charge(self):
        columns = tuple(CategoryColumn(name=f"c{k}", n_levels=90) for k in range(30))
        method = calibrated(objective_of(columns=columns))
        kinds = {batch.kind for batch in method._batches}
        squares = [(g.sensitivity / g.noise_scale) ** 2 for g in releases(method)]
        assert math.fsum(squares) == pytest.approx(method.noise_multiplier**-2)
        assert "moments" not in kinds

    @pytest.mark.parametrize("loss", LOSSES)
    def test_what_is_asked_is_what_was_planned(self, loss):
        table, y = table_of(200, loss)
        method, _, asked = released(table, y, objective_of(loss), pairs=True)
        assert [mechanism for _, _, mechanism in asked] == releases(method)
        for _, query, mechanism in asked:
            assert query.bound <= mechanism.sensitivity

    def test_past_its_end_it_plans_a_batch_that_is_refused(self):
        method = calibrated(objective_of())
        state = replace(method.init(method.objective.start()), batches=10**6)
        last = list(method.plans())[-1]
        assert method.plan(state) == last

    def test_products_are_for_many_rows(self):
        few, many = (calibrated(objective_of(), n) for n in (2000, 10**6))
        assert len(few.phases) == 1
        assert len(many.phases) == 2
        assert calibrated(objective_of(), 10**6, pairs=False).phases == few.phases
        assert len(calibrated(objective_of(), 2000, pairs=True).phases) == 2
        only = (replace(COLUMNS[0], monotone=1), COLUMNS[3])
        assert len(calibrated(objective_of(columns=only), 10**6).phases) == 1


def without_noise(table, y, objective, **settings):
    """Run on exact sums, as no budget would pay for."""
    problem = Problem(objective=objective, n_rows=len(table))
    method = Additive(noise_multiplier=0.0, problem=problem, **settings)
    data = PrivateDataset(
        CodedRows(table, y),
        n_rows=len(table),
        accountant=FreeAccountant(),
        randomness=Randomness(seed=0, insecure_deterministic=True),
    )
    start, steps = method.init(objective.start()), len(list(method.plans()))
    *_, (end, _) = minimize(objective, data, method, start, max_batches=steps)
    return method, end


class TestWithoutNoise:
    def test_counts_are_histograms(self):
        table, y = table_of(800)
        method, state = without_noise(table, y, objective_of(), pairs=False)
        columns = method.columns(state)
        for part, cells, counts in zip(
            columns.cells, table.cells, columns.counts, strict=False
        ):
            edges = np.arange(part.size + 1)
            assert (
                counts.tolist() == np.histogram(part.places(cells), edges)[0].tolist()
            )
        assert columns.counts[-1].tolist() == [np.sum(y < 0), np.sum(y > 0), 0]
        assert columns.class_shares == pytest.approx([np.mean(y < 0), np.mean(y > 0)])

    def test_the_fit_is_that_of_scikit_learn_on_the_same_features(self):
        table, y = table_of(2000)
        objective = objective_of(l2=0.0)
        method, state = without_noise(table, y, objective, pairs=False)
        features = method.features(state, 0).rows(table, np.ones(len(table)))
        X = features.block(slice(None)) * 2.0**-14
        best = LogisticRegression(C=1e6, max_iter=5000).fit(X, y)
        weights = method.weights_of(state, 0)[0]

        def loss(scores):
            return -float(log_expit(scores * y).mean())

        found = loss(X @ weights[:-1] + weights[-1])
        assert found == pytest.approx(loss(best.decision_function(X)), abs=2e-3)
        assert found < loss(np.full(len(y), math.log(np.mean(y > 0)))) - 0.05

    @pytest.mark.parametrize("loss", ["squared", "huber"])
    def test_a_numeric_target_is_predicted(self, loss):
        table, y = table_of(2000, loss)
        method, state = without_noise(table, y, objective_of(loss), pairs=True)
        found = method.model(state).scores(table)
        assert np.mean((found - y) ** 2) < 0.75 * np.var(y)

    def test_residuals_have_the_clip_of_their_slopes(self):
        """A usual residual, one standard deviation, has a slope of a quarter."""
        number, label = calibrated(objective_of("squared")), calibrated(objective_of())
        clips = [method._descent(0).clip for method in (number, label)]
        assert 0.1 < clips[0] < clips[1] / 3


class TestOddTables:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize(
        "kind", ["no rows", "one row", "no label", "all missing", "constant", "huge"]
    )
    def test_a_run_goes_on_to_its_end_without_a_warning(self, loss, kind):
        table, y = table_of(60, loss)
        cells = [column.astype(float) for column in table.cells]
        if kind == "no label":
            y[:] = math.nan
        for column in cells:
            if kind in ("all missing", "constant", "huge"):
                column[:] = {"all missing": math.nan, "huge": 1e308}.get(kind, 1.0)
        table = CodedTable(COLUMNS, tuple(cells))
        rows = {"no rows": 0, "one row": 1}.get(kind, 60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            method, state, asked = released(
                table[:rows], y[:rows], objective_of(loss), pairs=True
            )
            scores = method.model(state).scores(table)
        assert len(asked) == len(releases(method))
        assert np.isfinite(scores).all()

    def test_a_category_of_which_no_level_stands_out(self):
        """All its levels are one, which has no function of its own in products."""
        rng = np.random.default_rng(0)
        columns = (*BOUNDED[:1], CategoryColumn(name="id", n_levels=30), COLUMNS[1])
        cells = (rng.random(900), rng.integers(0, 30, 900), rng.normal(size=900))
        table, y = CodedTable(columns, cells), np.where(cells[0] > 0.5, 1.0, -1.0)
        budget = Budget(epsilon=0.05, delta=1e-6)
        method, state, _ = released(
            table, y, objective_of(columns=columns), pairs=True, budget=budget
        )
        sizes = [column.size for column in method.features(state, 0).columns]
        assert sizes[1] == 1, "else the seed shows nothing"
        assert all("id" not in pair for pair in method.model(state).pairs())


def run_of(
    tmp_path=None,
    *,
    resume=False,
    objective=None,
    rows=None,
    method=None,
    relation=Neighboring.ADD_REMOVE,
):
    table, y = table_of(300)
    files = None
    if tmp_path is not None:
        files = RunFiles(checkpoint=tmp_path / "run.checkpoint", every=1, resume=resume)
    return Run(
        objective or objective_of(),
        rows or CodedRows(table, y),
        method or Additive(pairs=True),
        BUDGET,
        n_rows=300,
        relation=relation,
        seed=5,
        files=files,
    )


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.methods.test_additive import run_of
def die(record):
    if record.batch == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
run_of(Path(sys.argv[1])).complete(die)
"""


class TestResume:
    @pytest.mark.parametrize("stop", [0, 1, 2, 9, 15, 20, 42])
    def test_a_run_that_was_left_goes_on_bit_for_bit(self, tmp_path, stop):
        whole = run_of().complete()
        first = run_of(tmp_path).complete(lambda record: record.batch == stop)
        assert len(first.records) == stop + 1
        again = run_of(tmp_path, resume=True).complete()
        assert again.w.tolist() == whole.w.tolist()
        assert again.records == whole.records
        table, _ = table_of(300)
        scores = [run.method.model(run.state).scores(table) for run in (whole, again)]
        assert (scores[0] == scores[1]).all()

    def test_so_does_a_run_that_was_killed(self, tmp_path):
        command = [sys.executable, "-c", KILLED, str(tmp_path), "17"]
        killed = subprocess.run(command, env=dict(os.environ), cwd=os.getcwd())
        assert killed.returncode == -signal.SIGKILL
        assert (tmp_path / "run.checkpoint").exists()
        again = run_of(tmp_path, resume=True).complete()
        assert again.w.tolist() == run_of().complete().w.tolist()


class TestWhatIsKept:
    def test_nothing_goes_from_one_run_to_the_next(self):
        """Neither by the rows nor by the method: features follow from releases."""
        alone = run_of().complete()
        table, y = table_of(300)
        rows, method = CodedRows(table, y), Additive(pairs=True)
        budget = Budget(epsilon=9.0, delta=1e-6)
        other = Run(
            objective_of(class_weight=(1.0, 0.1)),
            rows,
            method,
            budget,
            n_rows=300,
            relation=Neighboring.ADD_REMOVE,
            seed=5,
        ).complete()
        again = run_of(rows=rows, method=method).complete()
        assert again.w.tolist() == alone.w.tolist()
        assert other.w.tolist() != alone.w.tolist()

    def test_one_calibrated_method_serves_several_runs(self):
        table, y = table_of(300)
        objective = objective_of()
        method = calibrated(objective, 300, pairs=True)
        start = method.init(objective.start())

        def end(seed, method):
            data = PrivateDataset(
                CodedRows(table, y),
                n_rows=300,
                accountant=FreeAccountant(),
                randomness=Randomness(seed=seed, insecure_deterministic=True),
            )
            most = len(list(method.plans()))
            *_, (state, _) = minimize(objective, data, method, start, max_batches=most)
            return state.w.tolist()

        fresh = end(2, calibrated(objective, 300, pairs=True))
        end(1, method)
        assert end(2, method) == fresh

    def test_nothing_is_shown_of_rows(self):
        table, y = table_of(5)
        run = run_of(rows=CodedRows(table, y))
        shown = f"{run!r} {table!r} {run.method!r}"
        assert "CodedTable(['age', 'income', 'balance', 'sex', 'town'])" in shown
        assert not any(f"{cell:.0f}" in shown for cell in table.cells[1][:2])


class TestRefusals:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"class_weight": (-5.0, 1.0)}, "class_weight >= 0"),
            ({"class_weight": (math.nan, 1.0)}, "class_weight to be finite"),
            ({"class_weight": (math.inf, 1.0)}, "class_weight to be finite"),
            ({"class_weight": (0.0, 0.0)}, "above zero"),
            ({"class_weight": (1.0,)}, "each of 2 classes"),
            ({"class_weight": [1.0, 2.0]}, "class_weight"),
            ({"class_weight": "even"}, "class_weight"),
            ({"n_classes": 3}, "two classes"),
            ({"loss": "hinge"}, "loss"),
            ({"columns": ()}, "columns"),
            ({"l2": -1.0}, "l2"),
            ({"target_bounds": (1.0, 1.0)}, "low < high"),
            (
                {
                    "loss": "softmax",
                    "n_classes": 3,
                    "columns": (replace(COLUMNS[0], monotone=1),),
                },
                "direction",
            ),
        ],
    )
    def test_what_is_public_and_makes_no_sense(self, settings, message):
        with pytest.raises(ValueError, match=message):
            AdditiveObjective(**{"columns": COLUMNS, **settings})

    @pytest.mark.parametrize(
        ("low", "high"),
        [(1.0, 1.0), (2.0, 1.0), (-1e308, 1e308), (math.nan, None), (None, math.inf)],
    )
    def test_bounds(self, low, high):
        with pytest.raises(ValueError, match="bounds"):
            NumericColumn(name="x", low=low, high=high)

    def test_directions_and_levels(self):
        with pytest.raises(ValueError, match="direction"):
            NumericColumn(name="x", monotone=2)
        with pytest.raises(ValueError, match="n_levels"):
            CategoryColumn(name="x", n_levels=0)

    def test_another_objective_or_method(self):
        linear = LinearObjective(loss="logistic", n_features=2)
        with pytest.raises(ValueError, match="coded table"):
            calibrated(linear)
        with pytest.raises(ValueError, match="additive method"):
            run_of(method=make_method("auto", {}))

    def test_exchanged_rows_are_refused_before_a_charge(self, tmp_path):
        with pytest.raises(ValueError, match="Nothing was spent"):
            run_of(tmp_path, relation=Neighboring.REPLACE_ONE)
        assert list(tmp_path.iterdir()) == []

    def test_noise_that_cannot_be_drawn_is_refused_before_a_charge(self):
        with pytest.raises((ValueError, ArmijoError), match=r"[Nn]othing was spent"):
            calibrated(objective_of(), budget=Budget(epsilon=1e-9, delta=1e-12))


class TestCodedRows:
    def test_cells_have_to_be_numbers(self):
        columns = COLUMNS[:1]
        for cells in (np.array(["1"]), np.array([1], dtype=object), np.ones((1, 1))):
            with pytest.raises(ValueError, match="cells of 'age'"):
                CodedRows(CodedTable(columns, (cells,)), [1.0])

    def test_labels_and_weights_have_to_be_as_many_as_rows(self):
        table = CodedTable(COLUMNS[:1], (np.ones(3),))
        with pytest.raises(ValueError, match="a label for each row"):
            CodedRows(table, [1.0])
        for weight in (np.ones(2), np.ones((3, 1)), np.ones(())):
            with pytest.raises(ValueError, match="a weight for each row"):
                CodedRows(table, np.ones(3), weight)
        with pytest.raises(ValueError, match="columns of one length"):
            CodedTable(COLUMNS[:2], (np.ones(3), np.ones(2)))

    def test_the_weights_of_a_table_are_not_forgotten(self):
        table = CodedTable(COLUMNS[:1], (np.ones(3),), np.array([0.5, 7.0, math.nan]))
        assert CodedRows(table, np.ones(3)).take(None).X.weight.tolist() == [0.5, 1, 0]
        taken = CodedRows(table, np.ones(3)).take(np.array([1, 2]))
        assert taken.X.weight.tolist() == [1.0, 0.0]
