# SPDX-License-Identifier: Apache-2.0
"""``armijo fit`` with its default model: classes, numbers, persons, and its files."""

import json

import numpy as np
import pandas as pd
import pytest

from armijo.errors import TableError
from armijo.estimators.model_file import TableModel, load_model
from armijo.tables import Categorical, Date, Label, Numeric, Person, Schema, Target
from tests.cli.conftest import parsed
from tests.cli.small import FILES, own_files, small_frame, small_schema

BUDGET = ("--epsilon", 4, "--delta", 1e-5)


@pytest.fixture
def fit(armijo, small, tmp_path):
    def call(*flags, table=small.csv, schema=small.schema, out="run"):
        files = ("--schema", schema, "--out", tmp_path / out)
        return armijo("fit", table, *files, *BUDGET, *flags)

    return call


def written(path, columns, frame, **more):
    target = next(c.name for c in columns if isinstance(c, Label | Target))
    schema = Schema(columns=columns, target=target, reviewed=True, **more)
    (path / "s.toml").write_text(schema.to_toml())
    frame.to_csv(path / "t.csv", index=False)
    return {"table": path / "t.csv", "schema": path / "s.toml"}


def test_a_fit_leaves_files_that_verify_and_predict(armijo, fit, small, tmp_path):
    found = parsed(fit("--json", "--monotone", "age=+1", "--insecure-seed", 3))
    run = tmp_path / "run"
    assert own_files(run) == FILES and found["batches"] > 30
    assert parsed(armijo("verify", run, "--json"))["faults"] == []
    shown = parsed(armijo("show", run, "--json"))
    assert (shown["model"], shown["classes"]) == ("classifier", ["no", "yes"])
    model = load_model(run / "model.json")
    assert isinstance(model, TableModel)
    frame = small_frame()
    probabilities = model.predict_proba(frame)
    predicted = armijo("predict", run, small.parquet, "--probabilities")
    rows = pd.read_csv(pd.io.common.StringIO(predicted.out))
    np.testing.assert_allclose(rows["probability=yes"], probabilities[:, 1])
    assert (rows["prediction"] == frame["income"]).mean() > 0.7


def test_the_report_has_shapes_releases_and_warnings(fit, tmp_path):
    assert fit("--json").code == 0
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    shares = [release["share"] for release in document["releases"]]
    assert sum(shares) == pytest.approx(1.0)
    page = (tmp_path / "run" / "report.html").read_text()
    assert "What each column adds" in page and "What was released" in page
    for warning in document["warnings"]:
        assert warning in page
    assert "Largest weights" not in page


@pytest.mark.parametrize("categories", [None, ("red", "green")])
def test_the_report_says_what_a_hash_bucket_is(categories, fit, tmp_path):
    frame = pd.DataFrame({"hue": ["red", "green"] * 60, "y": ["no", "yes"] * 60})
    columns = (Categorical("hue", categories), Label("y", ("no", "yes")))
    assert fit("--json", **written(tmp_path, columns, frame)).code == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert ("buckets of hashed text (hue)" in page) == (categories is None)


def test_doubts_are_told_on_the_terminal_and_in_the_report(fit, small, tmp_path):
    (tmp_path / "s.toml").write_text(small_schema(n_rows=30_000).to_toml())
    found = fit("--json", schema=tmp_path / "s.toml")
    assert found.code == 0 and "Warning: n_rows is 30000" in found.err
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    assert any("n_rows is 30000" in warning for warning in document["warnings"])


def test_numbers_dates_and_missing_cells(armijo, fit, tmp_path):
    draw = np.random.default_rng(3)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(400), unit="D")
    x = draw.normal(50_000, 10_000, 400)
    frame = pd.DataFrame({"x": x, "day": days.astype(str), "y": 3 * x})
    frame.loc[::9, "x"] = np.nan
    given = written(tmp_path, (Numeric("x"), Date("day"), Target("y")), frame)
    assert fit("--json", **given).code == 0
    run = tmp_path / "run"
    assert parsed(armijo("verify", run, "--json"))["verified"] is True
    predicted = armijo("predict", run, tmp_path / "t.csv")
    values = pd.read_csv(pd.io.common.StringIO(predicted.out))["prediction"]
    assert np.isfinite(values).all() and values.std() > 0
    refused = armijo("predict", run, tmp_path / "t.csv", "--probabilities")
    assert refused.code == 2 and "got one of numbers" in refused.err


def test_the_unit_is_a_person_when_a_column_says_so(fit, tmp_path):
    frame = small_frame().assign(who=np.arange(317) // 3)
    columns = (*small_schema().columns, Person("who"))
    given = written(tmp_path, columns, frame, n_rows=106)
    found = parsed(fit("--json", **given))
    assert "a person, with all rows" in found["statement"]
    plain = written(tmp_path, small_schema().columns, frame, n_rows=106)
    again = parsed(fit("--json", "--person", "who", out="again", **plain))
    assert again["statement"] == found["statement"]
    report = json.loads((tmp_path / "again" / "report.json").read_text())
    assert report["privacy"]["unit"] == "person"
    assert "all rows of any one person" in (tmp_path / "again/report.html").read_text()


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--method", "sgd"), "got --method, which is for --model logistic"),
        (("--option", "steps=3"), "got --option, which is for --model logistic"),
        (("--model", "logistic", "--person", "age"), "is for --model additive"),
        (("--monotone", "age"), "NAME=+1"),
        (("--monotone", "color=1"), "monotone to name numeric columns"),
        (("--model", "forest"), "additive, logistic, svm"),
    ],
)
def test_options_of_another_model_are_refused(fit, tmp_path, flags, told):
    found = fit("--json", *flags)
    assert found.code == 2 and told in found.err
    assert not (tmp_path / "run").exists()


def test_a_changed_model_file_is_refused(fit, tmp_path):
    assert fit("--json").code == 0
    path = tmp_path / "run" / "model.json"
    text = path.read_text()
    document = json.loads(text)
    for change in (
        {"weights": [[1.0]]},
        {"counts": None},
        {"more": 1},
        {"noise_multiplier": 1e999},
        {"objective": {**document["additive"]["objective"], "columns": []}},
        {"objective": None},
    ):
        changed = {**document, "additive": {**document["additive"], **change}}
        path.write_text(json.dumps(changed))
        with pytest.raises(TableError):
            load_model(path)
    path.write_text(text)
    assert json.loads(json.dumps(load_model(path).to_dict())) == document


@pytest.mark.parametrize("kind", ["logistic", "svm"])
def test_a_linear_model_learns_scales_where_bounds_lack(kind, armijo, fit, tmp_path):
    age = np.random.default_rng(0).integers(18, 90, 2000)
    label = np.where(age > 50, "yes", "no")
    columns = (Numeric("age"), Label("y", ("no", "yes")))
    files = written(tmp_path, columns, pd.DataFrame({"age": age, "y": label}))
    assert fit("--model", kind, "--json", **files).code == 0
    run = tmp_path / "run"
    assert parsed(armijo("verify", run, "--json"))["faults"] == []
    model = load_model(run / "model.json")
    frame = pd.DataFrame({"age": age})
    assert (model.predict(frame) == label).mean() > 0.9
    if kind == "svm":
        with pytest.raises(TableError, match="got one of scores"):
            model.predict_proba(frame)
    refused = fit("--model", kind, "--method", "sgd", out="other", **files)
    assert refused.code != 0 and "low and high of every number" in refused.err
