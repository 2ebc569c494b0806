# SPDX-License-Identifier: Apache-2.0
"""Schemas: what they say, how they are stored, and what they refuse."""

import dataclasses
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import (
    Boolean,
    Categorical,
    Date,
    Ignore,
    Label,
    Numeric,
    Person,
    Schema,
    Target,
    category_text,
    load_schema,
)

GOOD = """
version = 2
reviewed = true
target = "income"
n_rows = 48842

[[columns]]
name = "age"
kind = "numeric"
low = 0
high = 120

[[columns]]
name = "code"
kind = "categorical"
categories = [1, 2.0, true, "x"]
buckets = 32

[[columns]]
name = "id"
kind = "ignore"

[[columns]]
name = "income"
kind = "label"
classes = ["no", "yes"]
"""


def write(tmp_path, text):
    path = tmp_path / "schema.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_is_read_in_order(tmp_path):
    schema = load_schema(write(tmp_path, GOOD))
    assert schema.columns == (
        Numeric("age", 0.0, 120.0),
        Categorical("code", ("1", "2", "True", "x"), buckets=32),
        Ignore("id"),
        Label("income", ("no", "yes")),
    )
    assert (schema.target, schema.n_rows, schema.classes) == (
        "income",
        48842,
        ("no", "yes"),
    )
    assert schema.feature_names == ("age", "code=1", "code=2", "code=True", "code=x")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 2", "version = 1", "take out missing = and unknown ="),
        ("version = 2", "version = 3", "version 2, got '3'; draft it again"),
        ("version = 2", "version = true", "version 2"),
        ("version = 2", "", "version 2, got 'None'"),
        ('target = "income"', "", "one column of kind label or target"),
        ('target = "income"', 'target = ""', "name one of the columns"),
        ('target = "income"', 'target = "incom"', "did you mean 'income'"),
        ('target = "income"', 'target = "age"', "one column of kind label"),
        ('target = "income"', "target = 3", "target to be a valid string"),
        ("n_rows", "nrows", "did you mean 'n_rows'"),
        ("n_rows = 48842", "n_rows = 0", "greater than or equal to 1"),
        ("n_rows = 48842", "n_rows = 1.5", "valid integer"),
        ("reviewed = true", 'reviewed = "yes"', "valid boolean"),
        ("low = 0", "low = 120", "low < high"),
        ("low = 0", "low = 121", "low < high"),
        ("low = 0", "low = nan", "finite number"),
        ("high = 120", "high = inf", "finite number"),
        ("high = 120", "high = true", "valid number"),
        ("high = 120", 'high = "120"', "valid number"),
        ("high = 120", f"high = 1{'0' * 400}", "valid number"),
        ("high = 120", f"high = 0x1{'0' * 5000}", "Expected a TOML file"),
        ("low = 0\nhigh = 120", "low = -1.7e308\nhigh = 1.7e308", "finite distance"),
        ("high = 120", "hihg = 120", "did you mean 'high'"),
        ("high = 120", "missing = 40", "Expected the keys name, low, high, kind"),
        ('kind = "ignore"', 'kind = "ignored"', "label, target, person, ignore"),
        ('kind = "ignore"', "kind = []", "label, target, person, ignore"),
        ('kind = "ignore"', "", "label, target, person, ignore"),
        ('kind = "ignore"', 'kind = "date"\nlow = "x"', "such as 2020-12-31"),
        ('kind = "ignore"', 'kind = "date"\ntime = 1', "valid boolean"),
        (
            'kind = "ignore"',
            'kind = "date"\nlow = 2020-01-02\nhigh = "2020-01-01"',
            "low < high",
        ),
        ('name = "id"', 'name = "age"', "'age' more than once"),
        ('name = "id"', 'name = " id"', "surrounding spaces"),
        ('name = "id"', "name = 1", "name to be a valid string"),
        ('name = "id"', "", "Expected name, got none"),
        ("2.0, true", "1.0, true", "'1' more than once"),
        ("2.0, true", "[2], true", "text, numbers or booleans"),
        ("2.0, true", '" ", true', "empty text"),
        ('[1, 2.0, true, "x"]', '"x"', "to be a list"),
        ('[1, 2.0, true, "x"]', "[]", "at least 1 categories, got 0"),
        ("buckets = 32", "buckets = 1", "greater than or equal to 2"),
        ("buckets = 32", "buckets = 1e3", "valid integer"),
        ('["no", "yes"]', '["no"]', "at least 2 classes, got 1"),
        ('["no", "yes"]', '["no", "no"]', "'no' more than once"),
        ("[[columns]]", "[[column]]", "did you mean 'columns'"),
    ],
)
def test_a_bad_file_is_refused_with_its_reason(tmp_path, old, new, message):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(TableError) as caught:
        load_schema(path)
    assert message in str(caught.value) and str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected a schema of version 2"),
        ("a = ", "TOML"),
        (b"\xff\xfe", "UTF-8"),
        ("x = " + "[" * 10_000, "TOML"),
        ('version = 2\ntarget = "a"\ncolumns = 3', "columns to be a valid tuple"),
        ('version = 2\ntarget = "a"\ncolumns = [3]', "column '1': Expected"),
        ('version = 2\ntarget = "a"\ncolumns = []', "name one of the columns"),
    ],
)
def test_what_is_no_schema_is_refused(tmp_path, text, message):
    with pytest.raises(TableError, match=message):
        load_schema(write(tmp_path, text))


def test_a_missing_file_a_folder_and_a_huge_file_are_refused(tmp_path, monkeypatch):
    with pytest.raises(TableError, match="No such file"):
        load_schema(tmp_path / "none.toml")
    with pytest.raises(TableError, match="directory"):
        load_schema(tmp_path)
    monkeypatch.setattr("armijo.tables.schema.MAX_SCHEMA_BYTES", 10)
    with pytest.raises(TableError, match="at most 10 bytes"):
        load_schema(write(tmp_path, GOOD))


@pytest.mark.parametrize("line", ["reviewed = false", ""])
def test_a_draft_is_refused_until_it_is_reviewed(tmp_path, line):
    path = write(tmp_path, GOOD.replace("reviewed = true", line))
    with pytest.raises(TableError, match=r"public knowledge.*reviewed = true"):
        load_schema(path)
    assert load_schema(path, require_reviewed=False).n_rows == 48842


def test_only_the_target_may_be_a_label():
    columns = (Numeric("a", 0, 1), Label("b", ("x", "y")), Label("c", ("x", "y")))
    with pytest.raises(ValueError, match="got 'b', 'c'"):
        Schema(columns=columns, target="c")


def test_a_schema_without_features_is_refused():
    with pytest.raises(ValueError, match="at least one column to learn from"):
        Schema(columns=(Label("y", ("a", "b")), Ignore("z")), target="y")


def test_parts_of_one_name_are_refused():
    columns = (Date("a"), Numeric("a.days"))
    with pytest.raises(ValueError, match=r"'a.days' more than once"):
        Schema(columns=columns)


def test_two_persons_are_refused():
    with pytest.raises(ValueError, match="at most one column of kind person"):
        Schema(columns=(Numeric("x"), Person("a"), Person("b")))


def test_a_target_of_numbers_has_no_classes_and_both_bounds_or_none():
    schema = Schema(columns=(Numeric("x"), Target("y", 0, 9)), target="y")
    assert schema.classes == () and schema.response.bounds == (0.0, 9.0)
    assert Target("y").bounds is None
    with pytest.raises(ValueError, match="both bounds of the target or none"):
        Target("y", low=0)


def test_two_features_of_one_name_are_refused():
    columns = (Numeric("a=b", 0, 1), Categorical("a", ("b",)), Label("y", ("u", "v")))
    with pytest.raises(ValueError, match="feature names"):
        Schema(columns=columns, target="y")


def test_half_of_a_surrogate_pair_is_refused():
    with pytest.raises(ValueError, match="UTF-8"):
        Categorical("a", ("\ud800",))


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_a_document_of_another_type_is_refused(document):
    with pytest.raises(TableError, match="table of keys"):
        Schema.from_dict(document)


def test_schemas_cannot_be_changed(schema):
    with pytest.raises(dataclasses.FrozenInstanceError):
        schema.target = "age"


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
levels = names.map(category_text).filter(bool)
numbers = st.floats(-1e300, 1e300)


@st.composite
def schemas(draw):
    keys = st.lists(
        names.map(str.strip).filter(bool), min_size=4, max_size=4, unique=True
    )
    number, category, label, other = draw(keys)
    low, high = sorted(draw(st.lists(numbers, min_size=2, max_size=2, unique=True)))
    categories = draw(st.lists(levels, min_size=1, max_size=20, unique=True))
    bounds = [draw(st.sampled_from([None, bound])) for bound in (low, high)]
    columns = [
        Numeric(number, *bounds),
        Categorical(category, draw(st.sampled_from([None, tuple(categories)]))),
        Date("day.", draw(st.none() | st.dates()), time=draw(st.booleans())),
        Boolean("flag."),
        Person("who."),
        Label(label, tuple(draw(st.lists(levels, min_size=2, unique=True)))),
        Ignore(other),
    ]
    return Schema(
        columns=tuple(draw(st.permutations(columns))),
        target=label,
        n_rows=draw(st.none() | st.integers(1, 10**12)),
        reviewed=draw(st.booleans()),
    )


@given(schemas())
def test_storing_loses_nothing(original):
    assert Schema.from_dict(tomllib.loads(original.to_toml())) == original
    assert Schema.from_dict(original.to_dict()) == original


@given(schemas())
def test_the_digest_sees_every_change_but_the_review(original):
    seen = original.digest()
    assert len(seen) == 64 and int(seen, 16) >= 0
    reviewed = dataclasses.replace(original, reviewed=not original.reviewed)
    assert reviewed.digest() == seen
    rows = dataclasses.replace(original, n_rows=(original.n_rows or 0) + 1)
    turned = dataclasses.replace(original, columns=original.columns[::-1])
    assert len({seen, rows.digest(), turned.digest()}) == 3
    for place, column in enumerate(original.columns):
        if isinstance(column, Numeric) and column.high is not None:
            wider = dataclasses.replace(column, high=math.nextafter(column.high, 2e300))
            columns = list(original.columns)
            columns[place] = wider
            assert dataclasses.replace(original, columns=columns).digest() != seen


def test_the_digest_is_stable(schema):
    # A change of this value makes every stored ledger header out of date.
    expected = "c860d6d73e92c7895bcaea78f669534b80f5048cd5fdf56f589e1cf00616d3a0"
    assert schema.digest() == expected


def test_written_files_say_that_they_are_public(schema):
    assert schema.to_toml().startswith("# Schema of a table")
    assert "public knowledge" in schema.to_toml()


def test_long_lists_take_a_line_per_entry_and_whole_numbers_are_short():
    levels = tuple(f"level number {i}" for i in range(6))
    columns = (Numeric("x", 0.5, 120.0), Label("y", levels))
    lines = Schema(columns=columns, target="y").to_toml().splitlines()
    assert "low = 0.5" in lines and "high = 120" in lines
    assert lines[-8:-6] == ["classes = [", '    "level number 0",']


def test_many_categories_do_not_take_the_square_of_their_time():
    """A list that is filled one by one took a minute for 16,000 categories."""
    levels = tuple(f"level {i}" for i in range(50_000))
    schema = Schema(columns=(Numeric("x", 0, 1), Label("y", levels)), target="y")
    assert Schema.from_dict(tomllib.loads(schema.to_toml())) == schema
