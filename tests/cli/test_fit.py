# SPDX-License-Identifier: Apache-2.0
"""Fit, predict, overwrite, show: what a folder holds and what is charged."""

import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from armijo.accounting.accountants import NOT_PRIVATE
from armijo.accounting.ledger import read_ledger
from armijo.cli.commands import parsed_option
from armijo.cli.fit import predict_table
from armijo.errors import ArmijoError, BudgetExceeded, PrivacyLeakWarning, TableError
from armijo.estimators.model_file import load_model
from armijo.registry import METHODS
from armijo.report.verify import ledger_fault, summarize_run
from armijo.tables import Numeric, encode
from tests.cli.conftest import parsed, words
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


def test_a_seeded_run_that_was_interrupted_ends_where_it_would_have(
    small, seeded, tmp_path
):
    count = 4
    given = {"parameters": {"random_state": SEED}}
    first = small.fit(tmp_path / "run", callback=stop_after(count), **given)
    assert not first.finished and first.estimator.n_iter_ == count
    unfinished = {
        "ledger.jsonl",
        "checkpoint.safetensors",
        "checkpoint.safetensors.key",
    }
    assert own_files(tmp_path / "run") == unfinished
    assert len(charges(tmp_path / "run")) == count
    again = small.fit(tmp_path / "run", resume=True, **given)
    assert again.finished and own_files(tmp_path / "run") == FILES
    same_run(again, seeded)
    assert released(tmp_path / "run" / "report.json") == released(
        seeded.folder / "report.json"
    )


def wider_schema(folder: Path) -> Path:
    columns = list(small_schema().columns)
    columns[0] = Numeric("age", 0, 120)
    path = folder / "wider.toml"
    path.write_text(small_schema(columns=tuple(columns)).to_toml())
    return path


def test_a_run_goes_on_with_its_own_settings_only(small, tmp_path):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(2))
    before = content(out)
    values = {"epsilon": 2.0, "sampling_prob": 0.2, "random_state": 1}
    others = [{"parameters": {name: value}} for name, value in values.items()]
    for other in (*others, {"kind": "svm"}, {"schema": wider_schema(tmp_path)}):
        with pytest.raises(ArmijoError, match=r"another run.*nothing was spent"):
            small.fit(out, resume=True, **other)
        assert content(out) == before


def test_what_is_not_interrupted_cannot_be_resumed(small, finished, tmp_path):
    before = content(finished.folder)
    with pytest.raises(TableError, match=r"resume.*a finished run.*without --resume"):
        small.fit(finished.folder, resume=True)
    assert content(finished.folder) == before
    with pytest.raises(TableError, match=r"resume.*no run.*without --resume"):
        small.fit(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ledger", ["missing", "older", "changed"])
def test_a_run_does_not_go_on_without_the_ledger_of_its_batches(
    small, tmp_path, ledger
):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(1))
    older = (out / "ledger.jsonl").read_bytes()
    small.fit(out, callback=stop_after(3), resume=True)
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").unlink()
    found = {"older": older, "changed": b"".join([*lines[:2], *lines[3:]])}
    if ledger in found:
        (out / "ledger.jsonl").write_bytes(found[ledger])
    with pytest.raises(ArmijoError, match="ledger"):
        small.fit(out, resume=True)


BUDGET = {"--epsilon": "1", "--delta": "1e-5", "--model": "logistic"}
SAMPLED = ("--option", "sampling_prob=0.5")


@pytest.fixture
def fit(armijo, small, tmp_path):
    def call(*flags):
        options = {"--schema": str(small.schema), "--out": str(tmp_path / "run")}
        return armijo("fit", small.csv, *words(BUDGET | options), *flags)

    return call


def test_all_methods_are_listed(armijo):
    found = parsed(armijo("methods", "--json"))["methods"]
    assert {one["name"] for one in found} == set(METHODS)
    shown = armijo("methods")
    assert shown.code == 0
    assert all(one["summary"] in shown.out for one in found)


@pytest.mark.parametrize(
    ("flags", "relation"),
    [
        (("--method", "objpert", "--option", "data_norm=2"), "add-remove"),
        (("--method", "objpert-pure", "--option", "data_norm=2"), "replace-one"),
        (("--method", "outpert-gd", "--option", "data_norm=2"), "replace-one"),
        (("--method", "sgd", "--option", "steps=5", *SAMPLED), "add-remove"),
        (("--method", "majority"), "add-remove"),
        (("--method", "sgd-tuned", "--option", "step_sizes=[0.5,1]"), "add-remove"),
    ],
)
def test_a_fit_by_another_method(fit, armijo, small, tmp_path, flags, relation):
    found = parsed(fit("--json", *flags))
    assert found["relation"] == relation
    assert f"under the {relation} relation" in found["statement"]
    model = load_model(tmp_path / "run" / "model.json")
    assert (model.data_norm is not None) == any("norm" in flag for flag in flags)
    predicted = armijo("predict", tmp_path / "run", small.csv)
    assert predicted.code == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["settings"]["method"] == flags[1]


def test_without_privacy_the_terminal_says_so(fit):
    finished = fit("--method", "nonprivate")
    assert finished.code == 0
    assert NOT_PRIVATE in finished.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--method", "objpert"), "data_norm"),
        (("--method", "objpert", "--option", "data_norm=1", *SAMPLED), "sampling_prob"),
        (("--method", "sgd", "--option", "speed=3"), "does not take speed"),
        (("--method", "sgd", "--option", "steps"), "NAME=VALUE"),
        (("--method", "sgd", "--option", "steps=0"), "steps"),
        (("--method", "majority", "--option", "expected_steps=3"), "expected_steps"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_and_spends_nothing(
    fit, tmp_path, flags, told
):
    finished = fit(*flags)
    assert finished.code == 2
    assert told in finished.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", ["1e300", "1e110"])
def test_a_fit_that_diverges_has_an_exit_code_of_its_own(fit, armijo, tmp_path, size):
    """Such weights are no model; the run is over, and what it spent is told."""
    flags = ("--method", "sgd", "--option", "steps=40", "--option")
    finished = fit(*flags, f"step_size={size}")
    assert finished.code == 5
    assert "diverged" in finished.err and "smaller step size" in finished.err
    view = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert f"The {len(view.charges)} charges" in finished.err
    assert len(view.charges) < 40
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left <= {"ledger.jsonl", "ledger.jsonl.lock"}
    found = parsed(armijo("show", tmp_path / "run", "--json"))
    assert found["state"] == "ended without a model" and "remedy" not in found
    again = fit(*flags, f"step_size={size}", "--resume")
    assert again.code == 2 and "start without --resume" in again.err
    assert fit(*flags, "step_size=0.5", "--overwrite").code == 0


def test_options_are_json_or_text():
    assert parsed_option("a=1.5") == ("a", 1.5)
    assert parsed_option("a=[1, 2]") == ("a", [1, 2])
    assert parsed_option("a=replica") == ("a", "replica")
    assert parsed_option("a=b=c") == ("a", "b=c")
