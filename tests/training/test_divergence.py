# SPDX-License-Identifier: Apache-2.0
"""A run that grows beyond all bounds ends at once: no model, no key, no charge more."""

import dataclasses
import math
import shutil

import numpy as np
import pytest
import torch

from armijo.accounting.budget import Budget, Neighboring
from armijo.accounting.ledger import read_ledger
from armijo.baselines.privgene import PrivGeneState
from armijo.errors import ArmijoError, Diverged
from armijo.estimators import PrivateLogisticRegression
from armijo.estimators.model_file import LinearModel
from armijo.methods.base import Direction, StepRecord
from armijo.methods.sgd import GradientState
from armijo.objectives import LinearObjective
from armijo.registry import make_method
from armijo.tables import Numeric
from armijo.training import run as run_module
from armijo.training.checkpoint import Checkpoint, save_checkpoint
from armijo.training.replay import key_path
from armijo.training.run import MAX_WEIGHT, refuse_diverged
from tests.cli.small import small_schema
from tests.methods.test_contract import FEATURES, ROWS, rows_of
from tests.training.runs import RunSettings, train

STEPS = 1000
RECORD = StepRecord(batch=6, update=6, direction_norm=1.0, epsilon=0.25)


@dataclasses.dataclass(frozen=True)
class SearchedState:
    w: torch.Tensor
    pending: Direction | None = None
    recent_steps: tuple[float, ...] = ()


def weights(*values):
    return torch.tensor(values, dtype=torch.float64)


FINE = weights(1.0, -2.0)
ODD = [
    (GradientState(w=weights(1.0, math.nan)), RECORD),
    (GradientState(w=weights(1.0, -math.inf)), RECORD),
    (GradientState(w=weights(1.0, -1.01 * MAX_WEIGHT)), RECORD),
    (GradientState(w=FINE, second_moment=weights(0.0, math.inf)), RECORD),
    (PrivGeneState(w=FINE, population=(FINE, weights(0.0, math.nan))), RECORD),
    (
        SearchedState(FINE, Direction(vector=weights(math.inf), noise_sq_norm=1.0)),
        RECORD,
    ),
    (SearchedState(FINE, Direction(vector=FINE, noise_sq_norm=math.inf)), RECORD),
    (SearchedState(FINE, recent_steps=(1.0, math.nan)), RECORD),
    (GradientState(w=FINE), dataclasses.replace(RECORD, direction_norm=math.inf)),
]


@pytest.mark.parametrize(("state", "record"), ODD)
def test_values_that_no_step_can_use_are_refused(state, record):
    with pytest.raises(Diverged, match=r"after batch 6\. The 7 charges \(epsilon 0.25"):
        refuse_diverged(state, record)


@pytest.mark.parametrize(("state", "record"), ODD[3:])
def test_what_a_checkpoint_cannot_hold_is_refused_before(tmp_path, state, record):
    """Else the run would end with an error of the writer, with everything spent."""
    with pytest.raises(ValueError, match="JSON compliant"):
        save_checkpoint(tmp_path / "c", run={}, checkpoint=Checkpoint(state, [record]))


def test_ordinary_values_pass():
    large = weights(MAX_WEIGHT, -MAX_WEIGHT)
    refuse_diverged(GradientState(w=large, first_moment=FINE), RECORD)
    refuse_diverged(
        SearchedState(FINE, Direction(vector=FINE, noise_sq_norm=0.0)), RECORD
    )


def test_a_model_file_takes_what_passes():
    schema = small_schema(
        columns=(
            *(Numeric(f"x{k}", 0, 1) for k in range(500)),
            small_schema().columns[-1],
        )
    )
    LinearModel(
        kind="logistic",
        data_norm=None,
        coef=np.full((1, 500), MAX_WEIGHT),
        intercept=np.full(1, MAX_WEIGHT),
        schema=schema,
        privacy={},
    )


def settings_of(folder, step_size=1e4, **changes):
    """A penalty of 1e-3 makes such steps go nine times as far back as they came."""
    settings = RunSettings(
        budget=Budget(epsilon=1.0, delta=1e-5),
        objective=LinearObjective(loss="logistic", n_features=FEATURES),
        method=make_method("sgd", {"step_size": step_size, "steps": STEPS}),
        n_rows=ROWS,
        relation=Neighboring.ADD_REMOVE,
        ledger=folder / "run.ledger",
        checkpoint=folder / "run.json",
    )
    return dataclasses.replace(settings, **changes)


def left_in(folder):
    return {path.name for path in folder.iterdir()} - {"run.ledger.lock"}


class TestRuns:
    def test_a_run_ends_where_it_diverges(self, tmp_path):
        settings, seen = settings_of(tmp_path), []
        with pytest.raises(Diverged, match="begin a new run") as found:
            train(*rows_of(), settings, callback=seen.append)
        spent = len(read_ledger(settings.ledger).charges)
        assert len(seen) + 1 == spent < STEPS / 5
        assert f"{spent} charges" in str(found.value)
        assert left_in(tmp_path) == {"run.ledger"}

    def test_there_is_nothing_to_resume(self, tmp_path):
        settings = settings_of(tmp_path)
        with pytest.raises(Diverged):
            train(*rows_of(), settings)
        ledger = settings.ledger.read_bytes()
        with pytest.raises(ArmijoError, match="nothing was spent"):
            train(*rows_of(), settings, resume=True)
        assert settings.ledger.read_bytes() == ledger
        assert not key_path(settings.checkpoint).exists()

    def test_a_crash_on_the_way_changes_nothing(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_module, "_SAVE_EVERY", math.inf)
        whole, dead = tmp_path / "whole", tmp_path / "dead"
        whole.mkdir()

        def die(record):
            if record.batch == 20 and not dead.exists():
                shutil.copytree(whole, dead)

        messages = []
        for folder, resume in ((whole, False), (dead, True)):
            settings = settings_of(folder)
            with pytest.raises(Diverged) as found:
                train(*rows_of(), settings, resume=resume, callback=die)
            messages.append(str(found.value))
            assert left_in(folder) == {"run.ledger"}
        assert messages[0] == messages[1]

    def test_without_files_no_model_of_odd_numbers_comes_back(self, tmp_path):
        model = PrivateLogisticRegression(
            method=make_method("sgd", {"step_size": 1e4, "steps": STEPS}),
            classes=[-1, 1],
            n_rows=ROWS,
        )
        with pytest.raises(Diverged):
            model.fit(*rows_of())
        assert not hasattr(model, "coef_")

    def test_weights_too_large_for_a_model_file_end_a_run_at_once(self, tmp_path):
        with pytest.raises(Diverged, match="The 1 charges"):
            train(*rows_of(), settings_of(tmp_path, step_size=1e110))
