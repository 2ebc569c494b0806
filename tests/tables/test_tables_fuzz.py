# SPDX-License-Identifier: Apache-2.0
"""Whatever a file holds, reading it works or raises `TableError`, nothing else."""

import gzip
import io
import json

import pandas as pd
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.tables import draft_schema, load_model, load_schema, read_table

# A shared machine may be slow; that is no failure.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

CSV = b'a,b,y\n1,"x, y",u\n007,NA,v\n,z,u\n'
SCHEMA = b"""version = 1
reviewed = true
target = "y"
[[columns]]
name = "a"
kind = "numeric"
low = 0
high = 1e2
[[columns]]
name = "y"
kind = "label"
classes = ["u", 1.0, true]
"""
MODEL = json.dumps(
    {
        "format": "armijo-model",
        "version": 1,
        "created_by": "armijo",
        "kind": "svm",
        "classes": ["u", "v"],
        "feature_names": ["a"],
        "intercept": [0.5],
        "coef": [[1.5]],
        "privacy": {"epsilon": 1.0},
        "schema": {
            "version": 1,
            "target": "y",
            "columns": [
                {"name": "a", "kind": "numeric", "low": 0, "high": 1},
                {"name": "y", "kind": "label", "classes": ["u", "v"]},
            ],
        },
    }
).encode()


def _parquet():
    buffer = io.BytesIO()
    pd.read_csv(io.BytesIO(CSV)).to_parquet(buffer, compression=None)
    return buffer.getvalue()


PARQUET = _parquet()
MARKS = [*',;\t|"\n\r\\[]{}=#.:-+0123456789eE_xinfatrul ', "\ufeff", "\x00", "é"]


@st.composite
def spoiled(draw, original):
    """Return the bytes with a few places cut out or overwritten."""
    content = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        length = draw(st.integers(0, 6))
        new = draw(st.binary(max_size=6) | st.sampled_from(MARKS).map(str.encode))
        content[at : at + length] = new
    return bytes(content)


def contents(original):
    marks = st.lists(st.sampled_from(MARKS)).map(lambda parts: "".join(parts).encode())
    anything = st.binary() | st.text().map(lambda t: t.encode(errors="replace")) | marks
    return spoiled(original) | anything


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def survives(call, path, content):
    path.write_bytes(content)
    try:
        return call(path)
    except TableError as error:
        assert str(path) in str(error)
        return None


@pytest.mark.parametrize(
    ("call", "name", "content"),
    [
        (read_table, "good.csv", CSV),
        (read_table, "good.parquet", PARQUET),
        (load_schema, "good.toml", SCHEMA),
        (load_model, "good.json", MODEL),
    ],
)
def test_the_unspoiled_files_are_read(folder, call, name, content):
    assert survives(call, folder / name, content) is not None


@settings(RELAXED, max_examples=200)
@given(content=contents(CSV))
@example(content=b'"')
@example(content=b'a"b,c"\n1,2')
@example(content=b"\r\r\r,\r")
@example(content=b",\n,\n")
def test_csv(folder, content):
    frame = survives(read_table, folder / "t.csv", content)
    assert frame is None or len(frame) > 0
    assert survives(draft_schema, folder / "t.csv", content) is None or len(frame) > 0


@settings(RELAXED, max_examples=50)
@given(
    content=contents(CSV).map(lambda c: gzip.compress(c, 1))
    | spoiled(gzip.compress(CSV))
)
def test_gzip(folder, content):
    survives(read_table, folder / "t.csv.gz", content)


@settings(RELAXED, max_examples=200)
@given(content=contents(PARQUET))
def test_parquet(folder, content):
    survives(read_table, folder / "t.parquet", content)


@settings(RELAXED, max_examples=200)
@given(content=contents(SCHEMA))
def test_schema(folder, content):
    survives(load_schema, folder / "s.toml", content)


@settings(RELAXED, max_examples=200)
@given(content=contents(MODEL))
def test_model(folder, content):
    survives(load_model, folder / "m.json", content)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@settings(RELAXED, max_examples=100)
@given(key=st.sampled_from(sorted(json.loads(MODEL))), value=plain)
def test_model_with_any_value_in_any_place(folder, key, value):
    document = {**json.loads(MODEL), key: value}
    survives(load_model, folder / "v.json", json.dumps(document).encode())


@settings(RELAXED, max_examples=100)
@given(
    place=st.sampled_from(["version", "target", "columns", "name", "kind", "low"]),
    value=plain,
)
def test_embedded_schema_with_any_value(folder, place, value):
    document = json.loads(MODEL)
    schema = document["schema"]
    (schema if place in schema else schema["columns"][0])[place] = value
    survives(load_model, folder / "e.json", json.dumps(document).encode())
