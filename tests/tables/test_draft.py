# SPDX-License-Identifier: Apache-2.0
"""Drafts guess well, warn loudly, and are refused until reviewed."""

import tomllib

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import (
    Schema,
    category_text,
    draft_schema,
    read_table,
)
from armijo.tables.coder import code_table

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
            "born": [f"19{i % 90 + 10}-01-02" for i in rows],
            "seen": [f"2020-01-02T{i % 24:02}:00" for i in rows],
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.assign(day=pd.Timestamp("2020-01-01")).to_parquet(tmp_path / "t.parquet")
    return tmp_path


def columns(text):
    return {entry["name"]: entry for entry in tomllib.loads(text)["columns"]}


def test_text_cells_are_guessed_from_their_values(census):
    text = draft_schema(census / "t.csv", "flag")
    found = columns(text)
    assert {key: entry["kind"] for key, entry in found.items()} == {
        **dict.fromkeys(["id", "person_id", "name", "none", "note"], "ignore"),
        **dict.fromkeys(["age", "wage", "grade", "hole"], "numeric"),
        **dict.fromkeys(["work", "zip", "street", "gap", "sex"], "categorical"),
        "born": "date",
        "seen": "date",
        "flag": "label",
    }
    assert "time" not in found["born"] and found["seen"]["time"] is True
    assert found["flag"]["classes"] == ["False", "True"]
    assert "READ FROM ITS VALUES (not private): the types of the columns and " in text


def test_types_of_a_file_that_has_them_are_taken_without_a_look_at_values(census):
    text = draft_schema(census / "t.parquet")
    found = columns(text)
    assert {key: entry["kind"] for key, entry in found.items()} == {
        **dict.fromkeys(["id", "person_id", "none"], "ignore"),
        **dict.fromkeys(["age", "wage", "grade", "hole"], "numeric"),
        **dict.fromkeys(
            ["work", "zip", "street", "name", "gap", "sex", "note", "born", "seen"],
            "categorical",
        ),
        "flag": "boolean",
        "day": "date",
    }
    assert found["day"]["time"] is True
    assert "READ FROM ITS VALUES (not private): nothing." in text
    frame = pd.read_parquet(census / "t.parquet")
    other = frame.assign(age=frame["age"] * 1000, work="Other", wage=-1.0)
    other.to_parquet(census / "other.parquet")
    changed = draft_schema(census / "other.parquet").replace(
        "other.parquet", "t.parquet"
    )
    assert changed == text


@pytest.mark.parametrize("name", ["t.csv", "t.parquet"])
def test_neither_bounds_nor_categories_are_drafted(census, name):
    for entry in columns(draft_schema(census / name, "sex")).values():
        assert not {"low", "high", "categories"} & set(entry)


def test_what_was_read_is_said_at_its_place(census):
    text = draft_schema(census / "t.csv", "sex")
    assert "reviewed = false # set to true" in text
    assert 'classes = ["f", "m"] # READ FROM THE DATA: replace' in text
    assert 'kind = "numeric" # a guess from the values' in text
    assert "# a different text in every row" in text
    assert "header line?" not in text


def test_the_target_must_be_a_column_with_classes(census):
    with pytest.raises(TableError, match="did you mean 'sex'"):
        draft_schema(census / "t.csv", target="Sex")
    with pytest.raises(TableError, match="2 to 100 classes, or of numbers, got 200"):
        draft_schema(census / "t.csv", target="name")
    assert columns(draft_schema(census / "t.csv", "wage"))["wage"]["kind"] == "target"


@pytest.mark.parametrize(("rows", "kind"), [(20, "categorical"), (21, "ignore")])
def test_a_different_text_in_each_of_many_rows_is_an_identifier(tmp_path, rows, kind):
    frame = pd.DataFrame({"name": [f"n{i}" for i in range(rows)], "x": 0.5})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found = columns(draft_schema(tmp_path / "t.csv"))
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


def test_a_draft_without_a_target_leaves_it_open(tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n1.5,2.5\n3.5,4.5\n")
    text = draft_schema(tmp_path / "t.csv")
    assert tomllib.loads(text)["target"] == "" and "# name the column to learn" in text
    with pytest.raises(TableError, match="set target"):
        Schema.from_dict(tomllib.loads(text))


def test_names_that_are_numbers_are_pointed_out(tmp_path):
    (tmp_path / "t.csv").write_text("39,State-gov\n50,Private\n")
    assert "has the table a header line?" in draft_schema(tmp_path / "t.csv")


# Pandas writes a lone carriage return without quotes, where it ends the row.
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(words, st.floats(-4e307, 4e307), words.filter(category_text)),
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
    faults = []
    table = code_table(read_table(path, multiline=True), schema, faults=faults)
    assert len(table) == len(rows) and faults == []
