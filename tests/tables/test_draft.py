# SPDX-License-Identifier: Apache-2.0
"""Drafts guess well, warn loudly, and are refused until reviewed."""

import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import (
    Schema,
    category_text,
    draft_schema,
    encode,
    read_table,
    round_bounds,
)

SIZE = 200


@pytest.fixture
def census(tmp_path):
    rows = np.arange(SIZE)
    frame = pd.DataFrame(
        {
            "id": rows,
            "person_id": (rows * 7919) % 100_003,
            "age": 17 + rows % 74,
            "wage": 0.25 + rows / 3,
            "work": np.where(rows % 2, "Private", "State"),
            "grade": rows % 5,
            "zip": [f"{i % 30:05}" for i in rows],
            "street": [f"street {i % 150}" for i in rows],
            "name": [f"n{i}" for i in rows],
            "gap": np.where(rows % 9, "a", None),
            "hole": np.where(rows % 9, rows * 1.5, np.nan),
            "none": [None] * SIZE,
            "sex": np.where(rows % 3, "f", "m"),
            "flag": rows % 7 == 0,
            "note": [f"free text {i}" for i in rows],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(day=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def columns(text):
    return {entry["name"]: entry for entry in tomllib.loads(text)["columns"]}


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_types_are_guessed(census, name):
    found = columns(draft_schema(census / name))
    assert {key: entry["kind"] for key, entry in found.items()} == {
        **dict.fromkeys(
            ["id", "person_id", "street", "name", "none", "note"], "ignore"
        ),
        **dict.fromkeys(["age", "wage", "hole"], "numeric"),
        **dict.fromkeys(["work", "grade", "zip", "gap", "sex"], "categorical"),
        "flag": "label",
        **({"day": "ignore"} if name == "t.parquet" else {}),
    }
    assert (found["age"]["low"], found["age"]["high"]) == (0, 100)
    assert found["work"]["categories"] == ["Private", "State"]
    assert found["grade"]["categories"] == ["0", "1", "2", "3", "4"]
    assert found["zip"]["categories"][:2] == ["00000", "00001"]
    assert found["gap"]["unknown"] == "zero" and "unknown" not in found["work"]
    assert found["flag"]["classes"] == ["False", "True"]


def test_the_warning_is_loud_and_on_every_line(census):
    text = draft_schema(census / "t.csv")
    assert "READ FROM THE DATA" in text.split("version =")[0]
    assert "reviewed = false # set to true" in text
    for line in text.splitlines():
        if line.startswith(("low", "high", "categories", "classes", "]")):
            assert line.endswith(("# from the data: replace", "= ["))
    assert "# more than 100 different texts" in text
    assert "# Some cells are missing or infinite" in text
    assert "header line?" not in text


def test_the_target_must_be_a_column_with_classes(census):
    with pytest.raises(TableError, match="did you mean 'sex'"):
        draft_schema(census / "t.csv", target="Sex")
    with pytest.raises(TableError, match="at most 100 classes, got 200"):
        draft_schema(census / "t.csv", target="wage")


@pytest.mark.parametrize(("rows", "kind"), [(20, "categorical"), (21, "ignore")])
def test_a_different_text_in_each_of_many_rows_is_an_identifier(tmp_path, rows, kind):
    frame = pd.DataFrame({"name": [f"n{i}" for i in range(rows)], "x": 0.5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = columns(draft_schema(tmp_path / "t.csv", target="x"))
    assert found["name"]["kind"] == kind


def test_classes_of_numbers_stand_in_the_order_of_numbers(tmp_path):
    pd.DataFrame({"x": [0.5, 1, 2], "y": [10, 9, 1]}).to_csv(
        tmp_path / "t.csv", index=False
    )
    assert columns(draft_schema(tmp_path / "t.csv", "y"))["y"]["classes"] == [
        "1",
        "9",
        "10",
    ]


def test_missing_labels_are_noted(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1,a\n2,\n3,b\n")
    assert "# Some labels are missing" in draft_schema(tmp_path / "t.csv", "y")


def test_a_table_without_a_likely_target_leaves_it_open(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1.5,2.5\n3.5,4.5\n")
    text = draft_schema(tmp_path / "t.csv")
    assert tomllib.loads(text)["target"] == "" and "# a guess" in text
    with pytest.raises(TableError, match="set target"):
        Schema.from_dict(tomllib.loads(text))


def test_names_that_are_numbers_are_pointed_out(tmp_path):
    (tmp_path / "t.csv").write_text("39,State-gov\n50,Private\n")
    assert "has the table a header line?" in draft_schema(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (17, 90, (0, 100)),
        (0, 99_999, (0, 100_000)),
        (12_285, 1_490_400, (0, 1_500_000)),
        (-0.37, 0.21, (-0.4, 0.4)),
        (0, 1, (0, 1)),
        (5, 5, (5, 6)),
        (0, 0, (0, 0.2)),
        (1990, 2020, (1990, 2020)),
    ],
)
def test_bounds_are_round(low, high, expected):
    assert round_bounds(low, high) == expected


usual = st.floats(-4e307, 4e307)


@given(usual, usual)
@example(5e-324, 1e-323)
@example(1.0, 1.0000000000000002)
@example(4e307, -4e307)
def test_bounds_lie_outward(one, other):
    low, high = round_bounds(min(one, other), max(one, other))
    assert low <= min(one, other) and max(one, other) <= high and low < high
    assert np.isfinite(high - low)


def test_extreme_numbers_still_give_bounds_that_a_schema_takes():
    low, high = round_bounds(-1.7e308, 1.7e308)
    assert low < high and np.isfinite(high - low)


# Pandas writes a lone carriage return without quotes, where it ends the row.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))

# A column of numbers with gaps would need a public value for them.
gaps = st.just("") | words.map("t{}".format)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(gaps, st.floats(-4e307, 4e307), words.filter(category_text)),
        min_size=2,
        max_size=12,
    )
)
def test_a_draft_fits_the_table_it_came_from(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("drafts") / "t.csv"
    frame = pd.DataFrame(rows, columns=["text", "number", "y"])
    assume(frame["y"].map(category_text).nunique() > 1)
    frame.to_csv(path, index=False)
    schema = Schema.from_dict(
        tomllib.loads(draft_schema(path, target="y", multiline=True))
    )
    X, y = encode(read_table(path, multiline=True), schema, strict=True)
    assert len(X) == len(y) == len(rows)
