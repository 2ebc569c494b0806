# SPDX-License-Identifier: Apache-2.0
"""The additive method: its charges, its limits, and runs that are cut or odd."""

import copy
import json
import math
import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import cache
from itertools import chain

import numpy as np
import pytest
from scipy.special import expit, log_expit, log_softmax, softmax
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.data.gate import PrivateDataset
from armijo.errors import ArmijoError
from armijo.methods import additive
from armijo.methods.additive import Additive
from armijo.methods.additive_model import AdditiveModel
from armijo.methods.base import Problem, minimize
from armijo.methods.recalibration import Recalibration, first_factor
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
        kinds = {batch.kind for batch in method.batches}
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

    @pytest.mark.parametrize("loss", ["logistic", "softmax", "squared"])
    def test_a_table_of_which_no_level_stands_out(self, loss):
        """All features are zero: the intercept is what there is to learn."""
        rng = np.random.default_rng(0)
        columns = tuple(CategoryColumn(name=n, n_levels=30) for n in "ab")
        table = CodedTable(columns, tuple(rng.integers(0, 30, (2, 300))))
        y = {"logistic": np.repeat([-1.0, 1.0], 150), "softmax": np.arange(300.0) % 3}
        method, state, _ = released(
            table,
            y.get(loss, rng.normal(size=300)),
            objective_of(loss, columns=columns),
            budget=Budget(epsilon=0.05, delta=1e-6),
        )
        sizes = [column.size for column in method.features(state, 0).columns]
        assert sizes == [1, 1], "else the seed shows nothing"
        scores = method.model(state).scores(table)
        assert np.ptp(scores, axis=0).max() == 0 and np.isfinite(scores).all()


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
            ({"loss": "absolute"}, "loss"),
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
        with pytest.raises(ValueError, match="as many cells in each column"):
            CodedTable(COLUMNS[:2], (np.ones(3), np.ones(2)))

    def test_the_weights_of_a_table_are_not_forgotten(self):
        table = CodedTable(COLUMNS[:1], (np.ones(3),), np.array([0.5, 7.0, math.nan]))
        assert CodedRows(table, np.ones(3)).take(None).X.weight.tolist() == [0.5, 1, 0]
        taken = CodedRows(table, np.ones(3)).take(np.array([1, 2]))
        assert taken.X.weight.tolist() == [1.0, 0.0]


CALLABLE = ("logistic", "squared")


@cache
def model_of(loss="logistic", monotone=0, pairs=True, **settings):
    columns = (replace(COLUMNS[0], monotone=monotone), *COLUMNS[1:])
    table, y = table_of(700, loss)
    table = CodedTable(columns, table.cells)
    objective = objective_of(loss, columns, **settings)
    method, state, _ = released(table, y, objective, pairs=pairs)
    return method.model(state)


def document_of(model):
    return json.loads(json.dumps(model.to_dict(), allow_nan=False))


class TestPlainValues:
    @pytest.mark.parametrize("loss", LOSSES)
    @pytest.mark.parametrize("pairs", [True, False])
    def test_there_and_back(self, loss, pairs):
        model = model_of(loss, pairs=pairs)
        again = AdditiveModel.from_dict(document_of(model))
        table, _ = table_of(300, loss, seed=8)
        assert (again.scores(table) == model.scores(table)).all()
        assert document_of(again) == document_of(model)
        assert again.pairs() == model.pairs()
        assert again.better_than_prior == model.better_than_prior

    def test_class_weights_come_back(self):
        for weight in ("balanced", (0.5, 1.0)):
            model = model_of(class_weight=weight)
            again = AdditiveModel.from_dict(document_of(model))
            assert again.objective == model.objective

    def test_every_value_that_is_missing_or_of_another_kind_is_refused(self):
        document = document_of(model_of())
        for name in document:
            changed = {key: document[key] for key in document if key != name}
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict(changed)
            for value in ("text", {}, math.nan, [[]], 10**400):
                with pytest.raises(ValueError, match="changed after training"):
                    AdditiveModel.from_dict({**document, name: value})

    @pytest.mark.parametrize(
        "name", ["ranges", "counts", "chosen", "calibration", "weights"]
    )
    def test_vectors_have_to_be_as_long_as_they_were(self, name):
        document = document_of(model_of())
        for values in (document[name][:-1], [*document[name], 0.0], [], None):
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict({**document, name: values})
        spoiled = copy.deepcopy(document)
        spoiled[name][0] = None
        with pytest.raises(ValueError, match="changed after training"):
            AdditiveModel.from_dict(spoiled)

    def test_ranges_have_to_be_some(self):
        document = document_of(model_of())
        low, high = document["ranges"][:2]
        for ends in ([high, low], [low, low], [-1.7e308, 1.7e308]):
            changed = {**document, "ranges": [*ends, *document["ranges"][2:]]}
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict(changed)

    def test_columns_are_checked(self):
        document = document_of(model_of())
        for change in ({"low": 100.0}, {"monotone": 7}, {"name": "x", "other": 1}):
            spoiled = copy.deepcopy(document)
            spoiled["objective"]["columns"][0].update(change)
            with pytest.raises(ValueError, match="changed after training"):
                AdditiveModel.from_dict(spoiled)


class TestShapes:
    @pytest.mark.parametrize("loss", LOSSES)
    def test_they_add_up_to_the_score_of_single_columns(self, loss):
        """At a level, and at the middle of a cell, where a shape is drawn."""
        model = model_of(loss, pairs=False)
        shapes = model.shapes()
        assert [shape.name for shape in shapes] == [c.name for c in COLUMNS]
        for shape in shapes:
            assert shape.y.shape == (model.objective.outputs, len(shape.x))
            assert len(shape.density) == len(shape.x)
            assert shape.density.min() >= 0
        sex = shapes[3]
        table, _ = table_of(2, loss)
        cells = [column[[0, 0]].astype(float) for column in table.cells]
        cells[3] = np.array([0.0, 1.0])
        features = model.features.rows(CodedTable(COLUMNS, tuple(cells)), np.ones(2))
        raw = features.product(model.weights[:, :-1].T)
        gap = sex.y[:, 1] - sex.y[:, 0]
        assert raw[1] - raw[0] == pytest.approx(
            gap, abs=1e-3 + 1e-3 * np.abs(gap).max()
        )

    @pytest.mark.parametrize("loss", CALLABLE)
    @pytest.mark.parametrize("way", [1, -1])
    def test_a_declared_direction_holds_for_any_row(self, loss, way):
        model = model_of(loss, monotone=way)
        rng = np.random.default_rng(0)
        ages = np.sort(np.concatenate([rng.uniform(-50, 200, 3000), [-1e308, 1e308]]))
        table, _ = table_of(5, loss, seed=3)
        for k in range(5):
            cells = [np.full(len(ages), float(column[k])) for column in table.cells]
            cells[0] = ages
            scores = model.scores(CodedTable(model.objective.columns, tuple(cells)))
            room = 1e-9 * max(np.abs(scores).max(), 1.0)
            assert (way * np.diff(scores) >= -room).all()
        shape = model.shapes()[0]
        assert (way * np.diff(shape.y[0]) >= 0).all()
        assert all("age" not in pair for pair in model.pairs())

    def test_a_missing_cell_keeps_what_was_fitted(self):
        free, held = (
            model_of(monotone=0, pairs=False),
            model_of(monotone=1, pairs=False),
        )
        cells = [column.astype(float) for column in table_of(4)[0].cells]
        cells[0] = np.full(4, math.nan)
        scores = [
            model.scores(CodedTable(model.objective.columns, tuple(cells)))
            for model in (free, held)
        ]
        assert scores[0] == pytest.approx(scores[1], abs=1e-3)


def test_what_is_told_of_the_table():
    model = model_of()
    assert model.n_rows_estimate == pytest.approx(700, abs=5 * model.n_rows_noise)
    assert model.prior.sum() == pytest.approx(1.0)
    assert np.isfinite(model.scores(table_of(50)[0])).all()


ROWS = 20_000


def recalibration(noise, outputs=1, clip=0.6):
    return Recalibration(
        noise=noise, share=0.03, clip=clip, n_rows=ROWS, outputs=outputs
    )


def corrected(known, how, scores, y, shares, rng):
    """Make the three releases; return what is known, and whether bounds were kept."""
    within = True
    for update in range(3):
        gradients = how.gradients(known, scores, y, update)
        used = how.mechanism(update)
        norms = np.linalg.norm(gradients, axis=1)
        within &= bool((np.minimum(norms, used.sensitivity) > 0.99 * norms).all())
        noisy = gradients.sum(axis=0) + used.noise_scale * rng.normal(
            size=gradients.shape[1]
        )
        known = how.corrected(known, noisy / ROWS, update, shares)
    return known, within


def binary(seed=0):
    rng = np.random.default_rng(seed)
    truth = 1.5 * rng.normal(size=ROWS) - 1.0
    y = np.where(rng.random(ROWS) < expit(truth), 1.0, -1.0)
    return truth, y, rng


def loss(scores, y):
    return -float(log_expit(scores * y).mean())


@pytest.mark.parametrize(("scale", "offset"), [(0.5, 0.0), (0.6, 0.5), (1.4, -0.3)])
def test_scores_of_a_wrong_scale_are_mended(scale, offset):
    truth, y, rng = binary()
    scores = (truth * scale + offset)[:, None]
    how = recalibration(1.0)
    known = how.begin(1.5 * scale, np.array([offset - scale]))
    known, _ = corrected(known, how, scores, y, np.array([0.7, 0.3]), rng)
    before, best = loss(scores[:, 0], y), loss(truth, y)
    after = loss(how.logits(known, scores)[:, 0], y)
    assert after - best < 0.5 * (before - best) + 1e-3


@pytest.mark.parametrize(
    ("loss_name", "n_classes", "most_moments"),
    [("logistic", 2, 2048), ("softmax", 3, 2048), ("logistic", 2, 0)],
)
def test_the_noise_of_a_score_is_known(monkeypatch, loss_name, n_classes, most_moments):
    """Where columns say nothing, a score varies as much as its noise, and shrinks.

    The mean over 8 runs of a variance in about 20 directions is right within 0.3.
    """
    seen = []

    def watched(variance, noises, way):
        factor = first_factor(variance, noises, way)
        seen.append((variance, noises.sum(), factor))
        return factor

    monkeypatch.setattr(additive, "first_factor", watched)
    monkeypatch.setattr(additive, "MOST_MOMENTS", most_moments)  # 0: none are released
    columns = tuple(NumericColumn(name=f"x{k}") for k in range(6))
    for seed in range(8):
        rng = np.random.default_rng(seed)
        table = CodedTable(columns, tuple(rng.normal(size=(6, 2000))))
        y = rng.integers(0, n_classes, 2000).astype(float)
        objective = AdditiveObjective(
            columns=columns, loss=loss_name, n_classes=n_classes
        )
        Run(
            objective,
            CodedRows(table, y if n_classes > 2 else 2 * y - 1),
            Additive(),
            Budget(epsilon=0.3, delta=1e-6),
            n_rows=2000,
            relation=Neighboring.ZERO_OUT,
            seed=seed,
        ).complete()
    variance, noise, factor = np.mean(seen, axis=0)
    assert 0.7 < variance / noise < 1.4
    assert factor < 0.7


def test_scores_grow_where_steps_end_early_and_stay_where_they_do_not():
    noises = np.full(30, 1 / 30)
    factors = [first_factor(20.0, noises, way) for way in (1e-2, 0.1, 1.0, 100.0)]
    assert factors == sorted(factors, reverse=True)
    assert factors[-1] == pytest.approx(0.95, abs=0.01) and factors[0] == 3.0
    assert first_factor(1.0, noises, 1e-2) == 0.3
    assert first_factor(1.0, np.zeros(30), 0.0) == 1.0
    assert first_factor(1.0, np.full(30, 1e-170), 1.0) == 1.0  # squares are zero


def test_much_noise_changes_little():
    truth, y, rng = binary()
    scores = truth[:, None]
    shifts = []
    for noise in (1.0, 1e6):
        how = recalibration(noise)
        known = how.begin(1.5, np.array([-1.0]))
        start = how.parameters(known)[2]
        known, _ = corrected(known, how, scores * 0.5, y, np.array([0.7, 0.3]), rng)
        shifts.append(np.abs(how.parameters(known)[2] - start).max())
    assert shifts[1] < 0.05 * shifts[0]


def test_the_order_of_scores_stays():
    """Whatever the noise: the scale is never negative."""
    truth, y, _ = binary()
    scores = np.sort(truth)[:, None]
    for seed in range(20):
        how = recalibration(3000.0)
        known = how.begin(1.5, np.array([-1.0]), factor=0.3 if seed % 2 else 1.0)
        rng = np.random.default_rng(seed)
        known, _ = corrected(known, how, scores, y, np.array([0.7, 0.3]), rng)
        assert (np.diff(how.logits(known, scores)[:, 0]) >= 0).all()
        assert np.isfinite(known).all()


def test_several_classes_have_one_scale():
    rng = np.random.default_rng(0)
    truth = 1.5 * rng.normal(size=(ROWS, 3))
    draws = rng.random((ROWS, 1)) > np.cumsum(softmax(truth, axis=1), axis=1)
    y = draws.sum(axis=1).astype(float)

    def loss(scores):
        return -float(
            log_softmax(scores, axis=1)[np.arange(ROWS), y.astype(int)].mean()
        )

    how = recalibration(1.0, outputs=3)
    known = how.begin(0.75, np.zeros(3))
    scores = truth * 0.5
    known, _ = corrected(known, how, scores, y, np.full(3, 1 / 3), rng)
    assert loss(how.logits(known, scores)) < 0.5 * (loss(scores) + loss(truth))


def test_gradients_stay_within_their_sensitivity():
    truth, y, rng = binary()
    how = recalibration(1.0)
    known = how.begin(1.5, np.array([-1.0]))
    _, within = corrected(known, how, truth[:, None], y, np.array([0.7, 0.3]), rng)
    assert within


def test_a_row_without_a_label_has_no_gradient():
    for outputs in (1, 3):
        how = recalibration(1.0, outputs)
        known = how.begin(1.0, np.zeros(outputs))
        for update in range(3):
            found = how.gradients(
                known, np.zeros((1, outputs)), np.array([math.nan]), update
            )
            assert np.isnan(found).any()
