# SPDX-License-Identifier: Apache-2.0
"""Fit, predict, overwrite, show: what a folder holds and what is charged."""

import json
import math
import os
import stat

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from armijo.accounting.ledger import read_ledger
from armijo.cli.fit import predict_table
from armijo.errors import BudgetExceeded, PrivacyLeakWarning, TableError
from armijo.estimators.model_file import load_model
from armijo.report.verify import ledger_fault, summarize_run
from armijo.tables import encode
from tests.cli.small import (
    CLASSES,
    FILES,
    FOUND_ROWS,
    PUBLIC_ROWS,
    SEED,
    SETTINGS,
    charges,
    content,
    own_files,
    released,
    same_run,
    small_frame,
    small_schema,
    stop_after,
    within_limits,
)

COSTLY = {"expected_steps": None, "gradient_rho": 10.0, "search_epsilon": 0.1}


def test_a_fit_leaves_model_report_and_ledger(finished):
    assert finished.finished
    assert own_files(finished.folder) == FILES
    view = read_ledger(finished.folder / "ledger.jsonl")
    history = finished.estimator.history_
    assert view.torn == 0
    assert 5 <= len(view.charges) == len(history) == finished.estimator.n_iter_
    assert [charge.index for charge in view.charges] == list(range(len(history)))
    assert view.header["run_settings"] == {
        "schema": small_schema().digest(),
        "kind": "logistic",
        "parameters": SETTINGS,
        "seed": None,
    }
    assert (view.header["epsilon"], view.header["delta"]) == (1.0, 1e-5)
    assert view.header["relation"] == "add-remove"
    assert within_limits(view)
    assert math.isclose(
        history["epsilon"].iloc[-1], view.spent[0] / view.header["limits"][0]
    )


def test_the_model_is_what_was_fitted(seeded):
    model = load_model(seeded.folder / "model.json")
    assert_array_equal(model.coef, seeded.estimator.coef_)
    assert_array_equal(model.intercept, seeded.estimator.intercept_)
    assert np.abs(model.coef).max() > 0
    assert (model.kind, model.classes) == ("logistic", CLASSES)
    assert model.schema.to_dict() == small_schema().to_dict()
    assert model.privacy["guarantee"] is False


def test_csv_and_parquet_are_the_same_table(small, seeded, tmp_path):
    found = small.fit(
        tmp_path / "run", table=small.parquet, parameters={"random_state": SEED}
    )
    assert found.finished and own_files(found.folder) == FILES
    same_run(found, seeded)


def test_the_public_number_of_rows_is_the_divisor_not_the_found_one(seeded):
    assert seeded.estimator.n_rows == PUBLIC_ROWS != FOUND_ROWS
    assert seeded.estimator.privacy_.relation == "add-remove"


@pytest.mark.parametrize("target", ["given", "absent"])
@pytest.mark.parametrize("named", ["folder", "file"])
def test_predictions_are_the_estimators_in_the_words_of_the_schema(
    seeded, tmp_path, target, named
):
    frame = small_frame()
    X, _ = encode(frame, small_schema())
    expected = np.asarray(CLASSES)[seeded.estimator.predict(X)]
    if target == "absent":
        frame = frame[["height", "color", "age"]]
    frame.to_csv(tmp_path / "new.csv", index=False)
    model = seeded.folder if named == "folder" else seeded.folder / "model.json"
    found = predict_table(model, tmp_path / "new.csv")
    assert list(found.columns) == ["prediction"]
    assert found["prediction"].tolist() == expected.tolist()
    assert set(expected) == set(CLASSES)


def test_probabilities_are_the_estimators(finished, small):
    found = predict_table(finished.folder, small.parquet, probabilities=True)
    names = [f"probability={name}" for name in CLASSES]
    assert list(found.columns) == ["prediction", *names]
    X, _ = encode(small_frame(), small_schema())
    np.testing.assert_allclose(
        found[names], finished.estimator.predict_proba(X), rtol=1e-12
    )
    np.testing.assert_allclose(found[names].sum(axis=1), 1.0, rtol=1e-15)
    likely = np.asarray(CLASSES)[found[names].to_numpy().argmax(axis=1)]
    assert found["prediction"].tolist() == likely.tolist()


def test_a_support_vector_machine_predicts_but_has_no_probabilities(small, tmp_path):
    found = small.fit(tmp_path / "run", kind="svm", parameters={"max_batches": 3})
    X, _ = encode(small_frame(), small_schema())
    expected = np.asarray(CLASSES)[found.estimator.predict(X)]
    assert predict_table(found.folder, small.csv)["prediction"].tolist() == [*expected]
    with pytest.raises(TableError, match=r"logistic.*svm.*no probabilities"):
        predict_table(found.folder, small.csv, probabilities=True)


def test_a_model_without_a_step_predicts_as_its_estimator_does(small, tmp_path):
    found = small.fit(tmp_path / "run", parameters={"max_batches": 0})
    X, _ = encode(small_frame(), small_schema())
    expected = np.asarray(CLASSES)[found.estimator.predict(X)]
    assert predict_table(found.folder, small.csv)["prediction"].tolist() == [*expected]


def test_a_folder_in_use_is_refused(small, finished, tmp_path):
    before = content(finished.folder)
    with pytest.raises(TableError, match=r"exists.*--overwrite.*--resume.*Nothing"):
        small.fit(finished.folder)
    assert content(finished.folder) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(TableError, match=r"Expected a folder.*got a file"):
        small.fit(tmp_path / "file", overwrite=True)
    assert (tmp_path / "file").read_text() == "mine"


def test_an_empty_folder_may_exist(small, tmp_path):
    found = small.fit(tmp_path, parameters={"max_batches": 0})
    assert own_files(tmp_path) == FILES and found.finished


def test_overwriting_moves_earlier_runs_aside_whole(small, tmp_path):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(2))
    (out / "notes").mkdir()
    (out / "notes" / "mine.txt").write_text("keep me")
    first = content(out)
    del first["checkpoint.safetensors.key"]  # destroyed: that run is over
    small.fit(out, overwrite=True, parameters={"max_batches": 2})
    assert own_files(out) == FILES | {"earlier-1"}
    assert content(out / "earlier-1") == first
    second = {k: v for k, v in content(out).items() if not k.startswith("earlier-")}
    small.fit(out, overwrite=True, parameters={"max_batches": 1})
    assert own_files(out) == FILES | {"earlier-1", "earlier-2"}
    assert content(out / "earlier-1") == first
    assert content(out / "earlier-2") == second
    assert [len(charges(p)) for p in (out, out / "earlier-2", out / "earlier-1")] == [
        1,
        2,
        2,
    ]


def test_an_interrupted_run_moved_aside_can_still_be_finished(small, tmp_path):
    small.fit(tmp_path / "run", callback=stop_after(2))
    small.fit(tmp_path / "run", overwrite=True, parameters={"max_batches": 0})
    found = small.fit(tmp_path / "run" / "earlier-1", resume=True)
    assert found.finished and found.estimator.n_iter_ > 2


def test_settings_that_are_refused_move_nothing(small, tmp_path):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(2))
    before = content(out)
    with pytest.raises(ValueError, match="epsilon"):
        small.fit(out, overwrite=True, parameters={"epsilon": 0.0})
    assert content(out) == before
    with pytest.raises(BudgetExceeded):
        small.fit(out, overwrite=True, parameters={**COSTLY, "sampling_prob": 1.0})
    assert content(out) == before and (out / "checkpoint.safetensors.key").exists()


def test_a_step_that_costs_more_than_the_budget_says_what_epsilon_would_do(
    small, tmp_path
):
    huge = COSTLY
    with pytest.raises(BudgetExceeded, match=r"needs epsilon ([0-9.]+)") as caught:
        small.fit(tmp_path / "run", parameters={**huge, "sampling_prob": 1.0})
    message = str(caught.value)
    assert (
        "Nothing was spent" in message and not (tmp_path / "run/ledger.jsonl").exists()
    )
    needed = float(message.split("needs epsilon ")[1].split(";")[0])
    given = {**huge, "sampling_prob": 1.0, "max_batches": 1}
    enough = small.fit(tmp_path / "enough", parameters={**given, "epsilon": needed})
    assert needed > 1 and enough.estimator.n_iter_ == 1
    with pytest.raises(BudgetExceeded):
        small.fit(tmp_path / "less", parameters={**given, "epsilon": 0.99 * needed})


def test_numbers_outside_their_bounds_are_clamped_and_nothing_is_said(
    small, seeded, tmp_path
):
    frame = small_frame()
    assert (frame["age"] > 100).sum() > 50
    frame["age"] = frame["age"].clip(0, 100)
    frame["height"] = frame["height"].clip(140, 200)
    frame.to_csv(tmp_path / "inside.csv", index=False)
    found = small.fit(
        tmp_path / "run",
        table=tmp_path / "inside.csv",
        parameters={"random_state": SEED},
    )
    same_run(found, seeded)
    for name in ("report.json", "model.json"):
        assert released(found.folder / name) == released(seeded.folder / name)


def test_a_finished_run_is_described(finished):
    found = summarize_run(finished.folder)
    assert found["state"] == "finished" and "remedy" not in found
    assert found["charges"] == found["batches"] == finished.estimator.n_iter_
    assert found["statement"] == finished.estimator.privacy_.guarantee.sentence()
    assert found["guarantee"] is True and found["broken_premises"] == []
    assert (found["model"], found["target"]) == ("logistic", "income")
    assert found["classes"] == list(CLASSES) and found["features"] == 5
    assert found["torn_lines"] == 0 and found["verified"] is True


def test_the_model_knows_the_end_of_its_ledger(finished):
    view = read_ledger(finished.folder / "ledger.jsonl")
    privacy = load_model(finished.folder / "model.json").privacy
    assert privacy["n_charges"] == len(view.charges)
    assert privacy["ledger_run"] == view.header["run"]
    assert privacy["ledger_head"] == view.head
    lines = (finished.folder / "ledger.jsonl").read_text().splitlines()
    last = [line for line in lines if line.startswith('{"kind":"charge"')][-1]
    assert f'"chain":"{view.head}"' in last
    report = json.loads((finished.folder / "report.json").read_text())
    assert report["privacy"] == dict(privacy)
    assert ledger_fault(view, privacy) is None
    changed = {**privacy, "ledger_head": "0" * len(view.head)}
    assert "lines were changed" in (ledger_fault(view, changed) or "")


def test_all_that_a_run_leaves_is_on_disk_before_its_checkpoint_goes(
    small, tmp_path, monkeypatch
):
    """A disk may forget what was not synced, and keep that the checkpoint is gone."""
    out, sizes, names, gone = tmp_path / "run", {}, {}, []
    sync, unlink = os.fsync, os.unlink

    def synced(descriptor):
        sync(descriptor)
        state = os.fstat(descriptor)
        sizes[state.st_ino] = state.st_size
        if stat.S_ISDIR(state.st_mode):
            names.update({path.name: path.stat().st_ino for path in out.iterdir()})

    def unlinked(path, **given):
        if os.fspath(path) == str(out / "checkpoint.safetensors"):
            gone.append(path)
            for name in FILES | {"leaky-diagnostics.csv"}:
                state = (out / name).stat()
                assert sizes.get(state.st_ino) == state.st_size, name
                assert names.get(name) == state.st_ino, name
        unlink(path, **given)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "unlink", unlinked)
    with pytest.warns(PrivacyLeakWarning):
        small.fit(out, parameters={"leaky_diagnostics": True, "max_batches": 2})
    assert gone
