# SPDX-License-Identifier: Apache-2.0
"""Bad tables, options, files and folders: named, refused, and nothing spent or left."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from armijo.tables import ROW_BORDERS, Schema
from tests.cli.conftest import parsed, spent_nothing
from tests.cli.small import small_frame, small_schema


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
