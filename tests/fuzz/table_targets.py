# SPDX-License-Identifier: Apache-2.0
"""Tables, schemas and model files: read whole, or refused with a `TableError`."""

import gzip
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from armijo.errors import TableError
from armijo.estimators.model_file import load_model, save_model
from armijo.tables import (
    Categorical,
    Label,
    Numeric,
    Schema,
    draft_schema,
    encode,
    load_schema,
    read_table,
)
from tests.fuzz.mutations import mutated, odd_json
from tests.fuzz.target import Target

CSV = b'a,b,y\n1,"x, y",u\n007,NA,v\n,z,u\n'
OTHER_CSVS = (
    b'a;b;y\r\n1,5;x;u\r\n-2e3;"q""r";v\r\n',
    "\ufeffa\tb\ty\n0.5\tä\tu\n1\t\tv\n".encode(),
)
SCHEMA = b"""version = 2
reviewed = true
target = "y"
n_rows = 12
[[columns]]
name = "a"
kind = "numeric"
low = 0
high = 1e2
[[columns]]
name = "b"
kind = "categorical"
categories = ["x, y", "NA", 7]
[[columns]]
name = "y"
kind = "label"
classes = ["u", 1.0, true]
[[columns]]
name = "c"
kind = "ignore"
[[columns]]
name = "d"
kind = "date"
low = 2020-01-02
time = true
[[columns]]
name = "e"
kind = "categorical"
buckets = 9
[[columns]]
name = "f"
kind = "boolean"
[[columns]]
name = "g"
kind = "person"
"""
MODEL = json.dumps(
    {
        "format": "armijo-model",
        "version": 3,
        "created_by": "armijo",
        "kind": "svm",
        "classes": ["u", "v"],
        "feature_names": ["a"],
        "intercept": [0.5],
        "coef": [[1.5]],
        "data_norm": None,
        "privacy": {"epsilon": 1.0},
        "schema": {
            "version": 2,
            "target": "y",
            "columns": [
                {"name": "a", "kind": "numeric", "low": 0, "high": 1},
                {"name": "y", "kind": "label", "classes": ["u", "v"]},
            ],
        },
    }
).encode()
PUBLIC = (
    Schema(
        columns=(
            Numeric("a", 0, 100),
            Categorical("b", ("x, y", "z")),
            Label("y", ("u", "v")),
        ),
        target="y",
    ),
    Schema(columns=(Categorical("a", ("1", "7")), Label("b", ("x", "z"))), target="b"),
)


def _table(path: Path, content: bytes) -> bool:
    """Read, encode and draft a table."""
    path.write_bytes(content)
    try:
        frame = read_table(path)
    except TableError as error:
        assert str(path) in str(error)
        return False
    if path.suffix != ".parquet":
        _lines_are_rows(path, frame)
    assert len(frame) > 0 and all(isinstance(name, str) for name in frame.columns)
    for schema in PUBLIC:
        _encoded(frame, schema)
    try:
        text = draft_schema(path)
    except TableError:
        return True
    tomllib.loads(text)
    path.with_suffix(".toml").write_text(text, encoding="utf-8")
    try:
        drafted = load_schema(path.with_suffix(".toml"), require_reviewed=False)
    except TableError:
        return True
    _encoded(frame, drafted)
    return True


def _lines_are_rows(path: Path, frame: pd.DataFrame) -> None:
    """Check that each line is a row, and that longer rows are read without an error."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    body = content.removeprefix(b"\xef\xbb\xbf").lstrip(b"\r\n").removesuffix(b"\n")
    assert len(frame) == body.count(b"\n")
    try:
        read_table(path, multiline=True)
    except TableError:
        pass  # a quote in the header may be open to the end


def _encoded(frame: pd.DataFrame, schema: Schema) -> None:
    """Check that whatever is encoded lies in [0, 1] and names a class, or none."""
    for with_target in (True, False):
        try:
            X, y = encode(frame, schema, with_target=with_target)
        except TableError:
            continue
        assert X.shape == (len(frame), len(schema.feature_names))
        assert ((X >= 0) & (X <= 1)).all()
        assert y is None or set(y) <= set(range(-1, len(schema.classes)))


def csv(folder: Path, content: bytes) -> bool:
    return _table(folder / "t.csv", content)


def packed_csv(folder: Path, content: bytes) -> bool:
    return _table(folder / "t.csv.gz", content)


def parquet(folder: Path, content: bytes) -> bool:
    return _table(folder / "t.parquet", content)


def written(table: pa.Table, **options: Any) -> bytes:
    """Return a table as the bytes of a Parquet file."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def _parquet_seeds() -> tuple[bytes, ...]:
    """Return the table of the CSV file, by itself and with columns of other types."""
    frame = pd.read_csv(io.BytesIO(CSV))
    plain = io.BytesIO()
    frame.to_parquet(plain, compression=None)
    more = pa.Table.from_pandas(frame)
    for name, column in {
        "when": pa.array([0, None, 2**40], pa.timestamp("us", "Europe/Paris")),
        "day": pa.array([0, 1, 2], pa.date32()),
        "price": pa.array(["1.50", None, "2"]).cast(pa.decimal128(9, 2)),
        "level": pa.array(["p", "q", "p"]).dictionary_encode(),
        "nested": pa.array([[1], [], None]),
    }.items():
        more = more.append_column(name, column)
    return plain.getvalue(), written(more, compression="none")


TYPES: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.bool_(), pa.null()),
        *(pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.date32()),
        *(pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("s")),
        *(pa.timestamp("ns"), pa.timestamp("s"), pa.timestamp("us", "UTC")),
        *(pa.timestamp("us", "Nowhere/Land"), pa.timestamp("ms", "+99:99")),
        *(pa.list_(pa.int8()), pa.struct([("k", pa.int8())])),
        *(pa.map_(pa.string(), pa.int8()), pa.decimal128(38, 10)),
        *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int8(), pa.int64())),
    )
}
CELLS = st.none() | st.integers(-(2**63), 2**63 - 1) | st.integers(-2, 300)


@st.composite
def _columns(draw: Any) -> bytes:
    """Return a Parquet file with columns of any types, names and bits."""
    n_rows = draw(st.integers(0, 3))
    fields, arrays = [], []
    for _ in range(draw(st.integers(1, 3))):
        kind = TYPES[draw(st.sampled_from(sorted(TYPES)))]
        name = draw(st.sampled_from(["a", "b", "y", "", "__index_level_0__"]))
        keys = st.sampled_from(["ARROW:extension:name", "pandas", "PARQUET:field_id"])
        notes = draw(st.none() | st.dictionaries(keys, st.text(max_size=9)))
        fields.append(pa.field(name, kind, metadata=notes))
        arrays.append(_array(draw, kind, n_rows))
    notes = draw(st.none() | st.dictionaries(st.just("pandas"), st.text(max_size=9)))
    table = pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=notes))
    try:
        return written(table)
    except (pa.ArrowException, ValueError):
        return written(pa.table({"a": [1]}))


def _array(draw: Any, kind: pa.DataType, n_rows: int) -> pa.Array:
    """Return cells of a type, or nulls where the cells are none of it."""
    cells = draw(st.lists(CELLS, min_size=n_rows, max_size=n_rows))
    for given in (cells, [cell if cell is None else str(cell) for cell in cells]):
        try:
            return pa.array(given).cast(kind)
        except pa.ArrowException:
            continue
    return pa.nulls(n_rows, kind)


def schema(folder: Path, content: bytes) -> bool:
    path = folder / "s.toml"
    path.write_bytes(content)
    try:
        found = load_schema(path)
    except TableError as error:
        assert str(path) in str(error)
        return False
    path.write_text(found.to_toml(), encoding="utf-8")
    assert load_schema(path) == found
    return True


def model(folder: Path, content: bytes) -> bool:
    path = folder / "m.json"
    path.write_bytes(content)
    try:
        found = load_model(path)
    except TableError as error:
        assert str(path) in str(error)
        return False
    corners = np.eye(2, len(found.feature_names))
    assert set(found.predict(corners)) <= set(found.classes)
    if found.kind == "logistic":
        assert np.allclose(found.predict_proba(corners).sum(axis=1), 1)
    save_model(path, found)
    again = load_model(path)
    assert again.to_dict() == found.to_dict()
    return True


MODELS = (
    MODEL,
    MODEL.replace(b"svm", b"logistic").replace(b'norm": null', b'norm": 1.5'),
)
PARQUETS = _parquet_seeds()
TABLE_TARGETS = {
    "csv": Target(run=csv, seeds=(CSV, *OTHER_CSVS), many=8000, guided=20_000),
    "csv.gz": Target(
        run=packed_csv,
        seeds=(gzip.compress(CSV, mtime=0),),
        built=mutated((CSV,)).map(lambda content: gzip.compress(content, 1)),
        many=1500,
        guided=3000,
    ),
    "parquet": Target(run=parquet, seeds=PARQUETS, built=_columns()),
    "schema": Target(run=schema, seeds=(SCHEMA,), guided=15_000),
    "model": Target(run=model, seeds=MODELS, built=odd_json(MODELS), guided=10_000),
}
