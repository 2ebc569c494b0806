# SPDX-License-Identifier: Apache-2.0
"""``armijo schema``, ``fit``, ``predict``, ``show``: exit codes, streams, Ctrl-C.

Most runs call ``main`` in this process; Ctrl-C is sent to the program itself too.
"""

import contextlib
import csv
import dataclasses
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from armijo.accounting.accountants import SEEDED
from armijo.accounting.ledger import OWN_KEYS, Ledger, read_ledger
from armijo.accounting.paper import BROKEN_PREMISES
from armijo.cli._ui import finish_step_on_interrupt
from armijo.methods import BLSGD
from armijo.tables import ROW_BORDERS, Schema
from tests.cli.conftest import USUAL, parsed, shown, spent_nothing, words
from tests.cli.small import CLASSES, FILES, FOUND_ROWS, Small, small_frame, small_schema


def test_a_fit_prints_its_promise_and_its_progress_apart(fit, tmp_path):
    finished = fit(target="income")
    text = shown(finished)
    assert "(1, 1e-05)-differentially private under the add-remove relation" in text
    assert "guarantee True" in text and "broken premises none" in text
    view = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert f"batches {len(view.charges)} " in text
    assert f"batch {len(view.charges)} " in finished.err
    assert "epsilon" in finished.err and "of 1 step size" in finished.err
    assert "step size" not in finished.out and "Warning" not in finished.err


def test_as_json_a_fit_prints_one_object_and_nothing_else(fit, tmp_path):
    finished = fit("--json", max_batches=2)
    found = parsed(finished)
    assert finished.err == ""
    assert set(found) == {
        "statement",
        "guarantee",
        "epsilon",
        "delta",
        "relation",
        "accountant",
        "broken_premises",
        "assumptions",
        "batches",
        "model",
        "report",
        "ledger",
    }
    assert (found["epsilon"], found["delta"], found["batches"]) == (1.0, 1e-5, 2)
    assert found["guarantee"] is True and found["broken_premises"] == []
    made = {path.name for path in (tmp_path / "run").iterdir()}
    assert made - {"ledger.jsonl.lock"} == FILES
    for key in ("model", "report", "ledger"):
        assert Path(found[key]).parent == tmp_path / "run" and Path(found[key]).exists()


@pytest.mark.filterwarnings("ignore::armijo.errors.PrivacyLeakWarning")
@pytest.mark.parametrize(
    ("options", "premises"),
    [
        ({"accounting": "paper", "expected_steps": "null"}, list(BROKEN_PREMISES)),
        ({"insecure_seed": 3}, [SEEDED]),
    ],
)
def test_without_a_guarantee_the_terminal_says_so(
    armijo, fit, tmp_path, options, premises
):
    finished = fit(max_batches=2, **options)
    show = armijo("show", tmp_path / "run")
    for text in (shown(finished), shown(show)):
        assert "statement NO GUARANTEE: " in text and "guarantee False" in text
        assert all(f"- {premise}" in text for premise in premises)
        assert "-differentially private under" not in text
    assert "Warning: NO GUARANTEE: " in finished.err
    found = parsed(armijo("show", tmp_path / "run", "--json"))
    assert found["guarantee"] is False and found["broken_premises"] == premises


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_predictions_are_written_as_csv(armijo, small, trained, tmp_path):
    found = armijo("predict", trained, small.csv)
    assert (found.code, found.err) == (0, "")
    predicted = [row["prediction"] for row in rows(found.out)]
    assert len(predicted) == FOUND_ROWS and set(predicted) == set(CLASSES)
    small_frame().drop(columns="income").to_parquet(tmp_path / "x.parquet")
    as_file = armijo(
        "predict",
        trained / "model.json",
        tmp_path / "x.parquet",
        "--out",
        tmp_path / "p.csv",
    )
    assert (as_file.code, as_file.out, as_file.err) == (0, "", "")
    assert [row["prediction"] for row in rows((tmp_path / "p.csv").read_text())] == (
        predicted
    )


def test_probabilities_are_written_beside(armijo, small, trained):
    found = armijo("predict", trained, small.csv, "--probabilities")
    for row in rows(found.out):
        each = {name: float(row[f"probability={name}"]) for name in CLASSES}
        assert sum(each.values()) == pytest.approx(1.0, rel=1e-12)
        assert row["prediction"] == max(each, key=each.__getitem__)


@pytest.mark.parametrize(
    ("model", "table", "told"),
    [
        ("nowhere", "t.csv", "nowhere"),
        ("run", "nowhere.csv", "nowhere.csv"),
        ("schema.toml", "t.csv", "schema.toml"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    armijo, small, trained, model, table, told
):
    where = {"run": trained}.get(model, small.csv.with_name(model))
    found = armijo("predict", where, small.csv.with_name(table))
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: ") and told in found.err


def test_other_and_missing_cells_have_predictions(armijo, small, trained, tmp_path):
    frame = small_frame().replace("red", "pink").astype({"age": object})
    frame.loc[:5, "age"] = "?"
    frame.to_csv(tmp_path / "colors.csv", index=False)
    found = armijo("predict", trained, tmp_path / "colors.csv")
    assert (found.code, found.err) == (0, "") and len(rows(found.out)) == FOUND_ROWS


@pytest.mark.parametrize("how", ["cut", "extended", "exchanged"])
def test_show_names_a_ledger_that_is_not_the_models(armijo, trained, tmp_path, how):
    """A cut at the end of a line leaves a sound ledger: the model knows better."""
    run, view = tmp_path / "run", read_ledger(trained / "ledger.jsonl")
    shutil.copytree(trained, run)
    path, told = run / "ledger.jsonl", len(view.charges)
    if how == "cut":  # both closing lines and a charge
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:-3]))
        message = "it is not closed, yet there is a model"
    header = {k: v for k, v in view.header.items() if k not in OWN_KEYS}
    if how == "exchanged":
        path.unlink()
        message = "expected the ledger of run"
    if how != "cut":
        with Ledger.open(path, header=header) as ledger:
            for charge in view.charges if how == "exchanged" else view.charges[:1]:
                ledger.append(dataclasses.replace(charge, index=ledger.next_index))
            ledger.finish(view.closing.digests)
    if how == "extended":
        message = f"found {told + 1}: it was extended"
    found = armijo("show", run, "--json")
    assert found.code == 4 and message in found.err and str(path) in found.err
    assert json.loads(found.out)["verified"] is False


def test_show_describes_a_finished_run(armijo, trained):
    found = parsed(armijo("show", trained, "--json"))
    assert found["state"] == "finished" and found["verified"] is True
    assert found["verdict"].startswith("verified: ")
    text = shown(armijo("show", trained))
    assert "state finished" in text and f"charges {found['charges']}" in text
    assert "target income" in text and "classes - no - yes" in text


def interrupting(monkeypatch, batch: int, times: int = 1) -> None:
    """Let Ctrl-C come in the middle of a batch."""
    whole, calls = BLSGD.step, []

    def step(self, *given):
        calls.append(given)
        if len(calls) == batch:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return whole(self, *given)

    monkeypatch.setattr(BLSGD, "step", step)


def test_an_interrupted_fit_can_be_shown_and_resumed(
    armijo, fit, small, tmp_path, monkeypatch
):
    out, before = tmp_path / "run", signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        interrupting(patch, 3)
        stopped = fit("--json")
    assert signal.getsignal(signal.SIGINT) is before
    assert (stopped.code, stopped.out) == (130, "")
    assert "interrupted after 3 batches" in stopped.err and "--resume" in stopped.err
    found = parsed(armijo("show", out, "--json"))
    assert (found["state"], found["charges"]) == ("unfinished", 3)
    assert "--resume" in shown(armijo("show", out))
    assert armijo("predict", out, small.csv).code == 2
    ledger = (out / "ledger.jsonl").read_bytes()
    refused = fit()
    assert refused.code == 2 and "--resume" in refused.err
    assert fit("--resume", epsilon=2).code == 2
    assert (out / "ledger.jsonl").read_bytes() == ledger
    again = fit("--resume", "--json")
    assert parsed(again)["batches"] == len(read_ledger(out / "ledger.jsonl").charges)
    assert (out / "ledger.jsonl").read_bytes().startswith(ledger)
    late = fit("--resume")
    assert late.code == 2 and "a finished run" in late.err


def test_a_second_interrupt_ends_at_once_and_keeps_the_checkpoint(
    fit, tmp_path, monkeypatch
):
    with monkeypatch.context() as patch:
        interrupting(patch, 3, times=2)
        stopped = fit()
    assert (stopped.code, stopped.out) == (130, "")
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == 3
    found = parsed(fit("--resume", "--json"))
    charges = read_ledger(tmp_path / "run" / "ledger.jsonl").charges
    assert found["batches"] == len(charges)  # the third is redone, not paid again


@pytest.fixture
def interruptible():
    """Take interrupts as a terminal's programs do; those in the background do not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_interrupts_are_counted_only_while_a_fit_runs():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), finish_step_on_interrupt() as stopped:
        assert stopped() is False
        signal.raise_signal(signal.SIGINT)
        assert stopped() is True
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


BATCHES = 150


def cheap_fit(small: Small, out: Path) -> list[str]:
    """Return the words of a fit of many cheap batches."""
    options = {"--option": "search_form=difference", "--max-batches": str(BATCHES)}
    files = {"--schema": str(small.schema), "--out": str(out)}
    return ["fit", str(small.csv), *words(USUAL | options | files)]


@contextlib.contextmanager
def started(small: Small, out: Path, charges: int, *flags: str):
    """Start the program as a user does, and wait until it has paid some batches."""
    path, deadline = out / "ledger.jsonl", time.monotonic() + 120
    with subprocess.Popen(
        [sys.executable, "-m", "armijo", *cheap_fit(small, out), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "400"},
    ) as process:
        while not path.exists() or path.read_bytes().count(b"\n") <= charges:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.005)
        yield process


def test_the_program_resumes_after_a_kill_and_after_ctrl_c(armijo, small, tmp_path):
    run = tmp_path / "run"
    ledger = run / "ledger.jsonl"
    with started(small, run, 20) as process:
        process.kill()
        process.communicate(timeout=60)
    killed = len(read_ledger(ledger).charges)
    with started(small, run, killed + 3, "--resume") as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (130, "")
    assert "--resume" in err and "Traceback" not in err
    before, view = ledger.read_bytes(), read_ledger(ledger)
    assert killed + 3 <= len(view.charges) < BATCHES and view.torn == 0
    again = armijo(*cheap_fit(small, run), "--resume", "--json")
    assert parsed(again)["batches"] == BATCHES and again.err == ""
    assert ledger.read_bytes().startswith(before)
    # Steps after the last checkpoint are redone with their noise and not paid again.
    charges = read_ledger(ledger).charges
    assert [charge.index for charge in charges] == list(range(BATCHES))
    report = json.loads((run / "report.json").read_text())
    assert [record["batch"] for record in report["history"]] == list(range(BATCHES))
    assert not (run / "checkpoint.safetensors").exists()
    assert not list(run.glob("*.key"))


@pytest.mark.parametrize("damage", ["changed", "cut", "missing", "other"])
def test_a_damaged_ledger_is_not_shown(armijo, trained, tmp_path, damage):
    lines = (trained / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    damaged = {
        "changed": [
            *lines[:2],
            lines[2].replace(b'"sampling_prob":0.1', b'"sampling_prob":0.2'),
        ],
        "cut": [*lines[:2], *lines[3:]],
        "other": [b"no ledger\n"],
    }
    if damage != "missing":
        content = [*damaged[damage], *lines[3:]] if damage == "changed" else None
        (tmp_path / "ledger.jsonl").write_bytes(b"".join(content or damaged[damage]))
    found = armijo("show", tmp_path, "--json")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: ") and "ledger" in found.err


def test_what_is_no_folder_is_not_shown(armijo, trained, tmp_path):
    for path in (tmp_path / "none", trained / "model.json"):
        found = armijo("show", path)
        assert found.code == 2 and str(path) in found.err and "folder" in found.err


def test_a_draft_has_to_be_reviewed_before_it_is_used(armijo, fit, small, tmp_path):
    drafted = armijo("schema", small.csv, "--target", "income")
    assert drafted.code == 0 and "not private" in drafted.err
    assert "Warning" not in drafted.out
    draft = tmp_path / "draft.toml"
    assert armijo("schema", small.csv, "--target", "income", "--out", draft).out == ""
    assert draft.read_text() == drafted.out
    again = armijo("schema", small.csv, "--out", draft)
    assert again.code == 2 and str(draft) in again.err
    assert draft.read_text() == drafted.out
    refused = fit(schema=draft)
    assert refused.code == 2 and "reviewed = true" in refused.err
    assert not (tmp_path / "run").exists()
    draft.write_text(drafted.out.replace("reviewed = false", "reviewed = true"))
    refused = fit(schema=draft)  # by public bounds alone, of which it drafts none
    assert refused.code == 2 and "Declare them" in refused.err
    bounded = '"numeric"\nlow = 0\nhigh = 200'
    draft.write_text(draft.read_text().replace('"numeric"', bounded))
    assert parsed(fit("--json", schema=draft, max_batches=0))["batches"] == 0


@pytest.mark.filterwarnings("ignore::armijo.errors.PrivacyLeakWarning")
def test_exact_values_are_written_only_when_asked_for_and_marked(fit, armijo, tmp_path):
    assert fit().code == 0
    assert not (tmp_path / "run" / "leaky-diagnostics.csv").exists()
    found = fit("--leaky-diagnostics", "--overwrite")
    assert found.code == 0 and "NO GUARANTEE" in shown(found)
    exact = tmp_path / "run" / "leaky-diagnostics.csv"
    assert exact.read_text().startswith("# NOT PRIVATE")
    assert exact.stat().st_mode & 0o777 == 0o600  # nobody else's, whatever the umask
    assert "NO GUARANTEE" in shown(armijo("show", tmp_path / "run"))
    assert "leaky_diagnostics" in (tmp_path / "run" / "report.html").read_text()


def clean_frame() -> pd.DataFrame:
    """Return rows that all lie within the public bounds."""
    frame = small_frame()
    return frame.assign(
        age=frame["age"].clip(0, 100), height=frame["height"].clip(140, 200)
    )


def changed_cell(column: str, value: object) -> pd.DataFrame:
    frame = clean_frame().astype(object)
    frame.loc[7, column] = value
    return frame


BAD_ROWS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "infinite": (changed_cell("age", np.inf), ("'age'", "outside", "rows 8")),
    "minus infinite": (changed_cell("age", "-inf"), ("'age'", "outside", "rows 8")),
    "word": (changed_cell("age", "old"), ("'age'", "'old'", "count as missing")),
    "label": (changed_cell("income", "maybe"), ("'income'", "'maybe'", "blank")),
    "no label": (changed_cell("income", None), ("'income'", "no label", "rows 8")),
    "category": (changed_cell("color", "gren"), ("'color'", "'gren'", "did you mean")),
}
BAD_TABLES: dict[str, tuple[Any, tuple[str, ...]]] = {
    "columns": (
        small_frame().rename(columns={"age": "Age"}),
        ("lacks 'age'", "did you mean 'Age'", "rename"),
    ),
    "extra column": (small_frame().assign(name="x"), ("'name'", "ignore")),
    "no target": (small_frame().drop(columns="income"), ("'income' (label)", "rename")),
    "no rows": (small_frame().head(0), ("empty table", "right file")),
    "prose": (
        "Dear all,\n\nplease, find the table\nattached.\n",
        ("lacks", "line of column names"),
    ),
    "no bytes": ("", ("empty file",)),
    "binary": ("\0\1\2\0", ("binary", "save the table as CSV")),
}


def write_bad(case: str, path: Path) -> Path:
    content = (BAD_ROWS | BAD_TABLES)[case][0]
    if isinstance(content, str):
        path.write_text(content)
    else:
        content.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_named_with_its_remedy(fit, tmp_path, case):
    table = write_bad(case, tmp_path / "bad.csv")
    found = fit("--json", table=table, target="income")
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: ") and "Traceback" not in found.err
    for told in BAD_TABLES[case][1]:
        assert told in found.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_tells_nothing_to_a_fit_and_all_to_its_owner(
    armijo, fit, small, tmp_path, case
):
    table = write_bad(case, tmp_path / "bad.csv")
    found = fit("--json", table=table, max_batches=1)
    assert found.code == 0 and found.err == ""
    named = armijo("check", table, "--schema", small.schema)
    assert named.code == 2 and all(told in named.err for told in BAD_ROWS[case][1])


def test_a_good_table_is_found_to_be_good(armijo, small, tmp_path):
    clean_frame().to_csv(tmp_path / "clean.csv", index=False)
    assert armijo("check", tmp_path / "clean.csv", "--schema", small.schema).code == 0


def test_bad_numbers_in_parquet_tell_nothing_either(armijo, fit, small, tmp_path):
    frame, path = clean_frame(), tmp_path / "bad.parquet"
    frame.loc[3, "height"] = np.inf
    frame.to_parquet(path)
    assert fit(table=path, max_batches=2).code == 0
    named = armijo("check", path, "--schema", small.schema)
    assert named.code == 2 and "'height'" in named.err and "data rows 4" in named.err


@pytest.mark.parametrize("positives", [0, 1])
def test_the_exit_code_does_not_tell_whether_a_class_occurs(fit, tmp_path, positives):
    """The finding: no positive row was refused, one was trained on."""
    frame = small_frame().query("income == 'no'").reset_index(drop=True)
    frame.loc[: positives - 1, "income"] = "yes"
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = fit("--json", table=tmp_path / "t.csv", max_batches=2)
    assert found.code == 0 and found.err == ""


def test_line_breaks_in_cells_are_read_when_asked_for_and_assumed(fit, small, tmp_path):
    lines = small.csv.read_text().splitlines()
    lines[1] = lines[1].replace(lines[1].split(",")[1], '"a\nb"')
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    plain = parsed(fit("--json", table=tmp_path / "t.csv", max_batches=2))
    (tested,) = plain["assumptions"]
    assert "element-wise functions" in tested
    out = tmp_path / "many"
    found = parsed(
        fit("--json", "--multiline", table=tmp_path / "t.csv", max_batches=2, out=out)
    )
    assert found["assumptions"] == [tested, ROW_BORDERS]
    assert f"; {ROW_BORDERS}." in found["statement"]
    report = json.loads((out / "report.json").read_text())
    assert ROW_BORDERS in report["assumptions"]
    assert report["privacy"]["assumptions"] == [tested, ROW_BORDERS]
    assert ROW_BORDERS in (out / "report.html").read_text()


def three_classes() -> Schema:
    *others, label = small_schema().columns
    more = type(label)(label.name, (*label.classes, "unknown"))
    return small_schema(columns=(*others, more))


BAD_OPTIONS: list[tuple[str, str, tuple[str, ...]]] = [
    *(("epsilon", v, ("epsilon", v)) for v in ("0", "-1", "nan", "inf")),
    *(("delta", v, ("delta", v)) for v in ("0", "1", "nan", "-0.5")),
    *(("sampling_prob", v, ("sampling_prob", v)) for v in ("0", "1.5")),
    ("sampling_prob", "NaN", ("sampling_prob", "got nan")),
    ("expected_steps", "-3", ("expected_steps", "-3")),
    ("max_batches", "-1", ("max_batches", "-1")),
    ("method", "newton", ("method", "'newton'", "blsgd-ac")),
    ("search_form", "none", ("'none'", "difference")),
    ("accounting", "magic", ("accounting", "'magic'", "sound")),
    ("insecure_seed", "-1", ("insecure_seed", "-1", "0 or more")),
    ("model", "forest", ("'forest'", "additive, logistic, svm")),
    ("target", "age", ("'income'", "'age'", "Nothing was spent")),
]


@pytest.mark.parametrize(("name", "value", "told"), BAD_OPTIONS)
def test_a_bad_option_is_named_with_its_value(fit, tmp_path, name, value, told):
    found = fit("--json", **{name: value})
    assert (found.code, found.out) == (2, "")
    assert found.err.startswith("Error: ") and "Traceback" not in found.err
    for part in told:
        assert part in found.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("case", ["table", "schema", "no schema", "classes"])
def test_missing_and_wrong_files_are_named(fit, small, tmp_path, case):
    (tmp_path / "three.toml").write_text(three_classes().to_toml())
    given, told = {
        "table": ({"table": tmp_path / "none.csv"}, ("none.csv", "check the path")),
        "schema": ({"schema": tmp_path / "none.toml"}, ("none.toml", "check the path")),
        "no schema": ({"schema": small.csv}, ("t.csv", "TOML")),
        "classes": (
            {"schema": tmp_path / "three.toml", "model": "svm"},
            ("two classes for svm, got 3", "logistic"),
        ),
    }[case]
    found = fit("--json", **given)
    assert (found.code, found.out) == (2, "")
    assert all(part in found.err for part in told)
    assert spent_nothing(tmp_path / "run")


def test_an_output_that_cannot_be_a_folder_is_refused(fit, small, tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        found = fit("--overwrite", out=out)
        assert found.code == 2 and str(tmp_path / "file") in found.err
    assert (tmp_path / "file").read_text() == "mine"


def test_an_output_that_cannot_be_written_is_refused(fit, tmp_path, monkeypatch):
    """As on a disk that is read-only, also for an administrator."""

    def mkdir(self, *given, **named):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", mkdir)
    found = fit()
    assert (found.code, found.out) == (2, "")
    assert str(tmp_path / "run") in found.err and "Traceback" not in found.err


def test_a_step_that_does_not_fit_has_its_own_exit_code(fit, tmp_path):
    """The paper's budget of one step grows with epsilon squared."""
    found = fit("--json", epsilon=50000, sampling_prob=1, expected_steps="null")
    assert (found.code, found.out) == (3, "")
    assert "50000" in found.err and "single step" in found.err
    assert "Nothing was spent" in found.err and spent_nothing(tmp_path / "run")
