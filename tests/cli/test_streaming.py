# SPDX-License-Identifier: Apache-2.0
"""Tables in pieces: the same model, bit for bit, and errors before any charge."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from traceback import format_exception

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner

from armijo import PrivateClassifier, PrivateLogisticRegression, PrivateRegressor
from armijo.cli import app
from armijo.cli.fit import fit_table
from armijo.errors import ArmijoError, TableError
from armijo.methods.line_search import BLSGD
from armijo.report.verify import verify_run
from armijo.tables import stream as streams
from armijo.tables.frames import arrow_to_pandas
from armijo.tables.stream import StreamedTable, find_stream, open_stream
from tests.crash.harness import forked

N = 900
SCHEMA = """
version = 2
reviewed = true
target = "label"

[[columns]]
name = "age"
kind = "numeric"
low = 0
high = 100

[[columns]]
name = "sex"
kind = "categorical"
categories = ["f", "m"]

[[columns]]
name = "label"
kind = "label"
classes = ["lo", "hi"]
"""
SEEDED = {"epsilon": 2.0, "delta": 1e-5, "random_state": 7}


def people() -> pa.Table:
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, N).astype(np.float32)
    frame = pd.DataFrame({"age": age, "sex": rng.choice(["f", "m", "x"], N)})
    frame["label"] = np.where(age + rng.normal(size=N) > 50, "hi", "lo")
    frame.loc[3, "age"], frame.loc[5, "label"] = np.nan, None
    return pa.Table.from_pandas(frame, preserve_index=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files with small row groups, a single one, and a schema."""
    data, table = tmp_path / "data", people()
    data.mkdir()
    for part in range(3):
        piece = table.slice(part * 300, 300)
        pq.write_table(piece, data / f"part-{part}.parquet", row_group_size=130)
    pq.write_table(table, tmp_path / "whole.parquet")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return tmp_path


def fitted(folder: Path, table: str, out: str, **options):
    given = {"kind": "additive", "parameters": SEEDED, **options}
    given |= {"schema": folder / "schema.toml", "out": folder / out}
    return fit_table(folder / table, **given)


def fitted_model(folder: Path, out: str) -> dict:
    """Return the model without what a ledger is called and when it was written."""
    model = json.loads((folder / out / "model.json").read_text())
    return {name: part for name, part in model.items() if name != "privacy"}


@pytest.mark.parametrize("kind", ["additive", "logistic"])
def test_files_stream_to_the_model_of_one_table_in_memory(folder, kind):
    fitted(folder, "whole.parquet", "memory", kind=kind)
    expected = fitted_model(folder, "memory")
    fitted(folder, "data", "kept", kind=kind)
    assert fitted_model(folder, "kept") == expected
    fitted(folder, "data/part-*.parquet", "streamed", kind=kind, memory=0)
    assert fitted_model(folder, "streamed") == expected


def test_neither_batch_sizes_nor_the_order_of_files_change_a_bit(folder, monkeypatch):
    expected = PrivateClassifier(classes=["hi", "lo"], random_state=1)
    expected.fit(people(), "label")
    stream = find_stream(folder / "data")
    reverse = replace(stream, pieces=stream.pieces[::-1])
    for height in (17, 256):
        monkeypatch.setattr("armijo.tables.stream._BLOCK_NUMBERS", 1)
        monkeypatch.setattr("armijo.tables.stream._MOST_ROWS", height)
        found = PrivateClassifier(classes=["hi", "lo"], random_state=1)
        found.fit_resumable(reverse, "label", memory=0)
        rows = people().drop_columns("label")
        scores = found.decision_function(rows)
        np.testing.assert_array_equal(scores, expected.decision_function(rows))


def lazy_frame(table: pa.Table):
    return pytest.importorskip("polars").from_arrow(table).lazy()


def relation(table: pa.Table):
    return pytest.importorskip("duckdb").from_arrow(table)


@pytest.mark.parametrize("made", [ds.dataset, lazy_frame, relation])
def test_datasets_lazy_frames_and_relations_are_streams(made):
    numbers = people().select(["age"]).append_column("twice", people()["age"])
    linear = numbers.append_column("label", people()["label"])
    known = {"classes": ["hi", "lo"], "random_state": 1}
    expected = PrivateLogisticRegression(**known).fit(linear, "label")
    found = PrivateLogisticRegression(**known).fit(made(linear), "label")
    np.testing.assert_array_equal(found.coef_, expected.coef_)
    expected = (
        PrivateRegressor(random_state=1)
        .fit(numbers, "age")
        .predict(numbers.drop_columns("age"))
    )
    found = PrivateRegressor(random_state=1).fit(made(numbers), "age")
    scores = found.predict(numbers.drop_columns("age"))
    np.testing.assert_array_equal(scores, expected)


def visits() -> pa.Table:
    """Rows of whom a third have several, in any order, some of nobody, and weights."""
    rng = np.random.default_rng(3)
    who = pa.array([f"p{k}" if k < 400 else None for k in rng.integers(0, 420, N)])
    weight = pa.array(rng.uniform(-0.5, 1.5, N).tolist())
    return people().append_column("who", who).append_column("weight", weight)


def visitor_model(**given):
    known = {"classes": ["hi", "lo"], "random_state": 1}
    return PrivateClassifier(**known | given)


PERSONS = {"person": "who", "n_rows": 400}


@pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning")
@pytest.mark.parametrize("memory", [0, None])
def test_persons_and_weights_of_a_stream_are_those_of_memory(
    tmp_path, monkeypatch, memory
):
    table = visits()
    weight = table["weight"].to_numpy()
    for part in range(3):
        pq.write_table(table.slice(part * 300, 300), tmp_path / f"{part}.parquet")
    monkeypatch.setattr("armijo.tables.stream._BLOCK_NUMBERS", 1)
    monkeypatch.setattr("armijo.tables.stream._MOST_ROWS", 97)
    held = visitor_model(**PERSONS)
    held.fit(table.drop_columns("weight"), "label", sample_weight=weight)
    rows = people().drop_columns("label").append_column("who", table["who"])
    expected = held.decision_function(rows)
    found = visitor_model(**PERSONS).fit_resumable(
        ds.dataset(tmp_path), "label", sample_weight="weight", memory=memory
    )
    np.testing.assert_array_equal(found.decision_function(rows), expected)
    assert found.privacy_.to_dict() == held.privacy_.to_dict()
    assert "person" in str(found.privacy_.guarantee)
    named = visitor_model(**PERSONS).fit(table, "label", sample_weight="weight")
    np.testing.assert_array_equal(named.decision_function(rows), expected)
    # What is compared would be another model without persons or without weights.
    others = [
        visitor_model(**PERSONS).fit(ds.dataset(table.drop_columns("weight")), "label"),
        visitor_model(schema={"who": "ignore"}).fit(
            ds.dataset(table), "label", sample_weight="weight"
        ),
    ]
    for other in others:
        assert (other.decision_function(rows) != expected).any()


@pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning")
def test_rows_of_a_person_are_counted_once_after_the_first_charge(tmp_path):
    asked, ledger = [], tmp_path / "ledger.jsonl"
    stream = open_stream(ds.dataset(visits().drop_columns("weight")))
    piece = stream.pieces[0]

    def read(names, height):
        asked.append((list(names), len(charges(ledger))))
        return piece.read(names, height)

    watched = replace(stream, pieces=(replace(piece, read=read),))
    model = visitor_model(**PERSONS, random_state=None, ledger=ledger)
    model.fit_resumable(watched, "label", memory=0)
    assert asked[0] == (["who"], 1)
    assert ["who"] not in [names for names, _ in asked[1:]]
    assert "p17" not in ledger.read_text() and "p17" not in repr(vars(model))


@pytest.mark.parametrize("made", [lazy_frame, relation])
def test_persons_need_rows_that_stay_as_they_were_counted(made, tmp_path):
    """A query may give other rows at each pass: more of a person than were counted."""
    ledger = tmp_path / "ledger.jsonl"
    rows = made(visits().drop_columns("weight"))
    with pytest.raises(TableError, match="how many rows a person has is counted once"):
        visitor_model(**PERSONS, random_state=None, ledger=ledger).fit(rows, "label")
    with pytest.raises(ValueError, match="number of persons as n_rows"):
        visitor_model(person="who").fit(
            ds.dataset(visits().drop_columns("weight")), "label"
        )
    assert not ledger.exists()


def test_a_person_column_of_files_is_given_to_the_command_line(tmp_path):
    (tmp_path / "data").mkdir()
    pq.write_table(visits().drop_columns("weight"), tmp_path / "data" / "a.parquet")
    (tmp_path / "schema.toml").write_text(f"n_rows = 400\n{SCHEMA}")
    args = ["fit", tmp_path / "data", "--schema", tmp_path / "schema.toml"]
    args += ["--out", tmp_path / "out", "--epsilon", 2, "--delta", 1e-5]
    args = list(map(str, [*args, "--person", "who", "--json"]))
    planned = json.loads(CliRunner().invoke(app, [*args, "--dry-run"]).stdout)
    told = json.loads(CliRunner().invoke(app, args).stdout)
    assert "person" in told["statement"]
    assert planned["reads_of_the_files"] == 2  # one to count, one that is kept


def test_a_filtered_dataset_is_a_stream(folder):
    kept = ds.dataset(folder / "data").filter(ds.field("age") > 20)
    rows = people().filter(ds.field("age") > 20)
    models = [visitor_model().fit(table, "label") for table in (kept, rows)]
    scores = [m.decision_function(people().drop_columns("label")) for m in models]
    np.testing.assert_array_equal(*scores)

    def change(record):
        os.utime(folder / "data/part-1.parquet", ns=(1, 1))

    with pytest.raises(ArmijoError, match="the dataset: Expected the file as it was"):
        visitor_model(callback=change).fit_resumable(kept, "label", memory=0)
    other = ds.dataset(folder / "data").filter(ds.field("age") > 21)
    digests = [open_stream(one).pieces[0].digests() for one in (kept, other)]
    assert digests[0][1:] == digests[1][1:] and digests[0] != digests[1]


def facts(dataset):
    """Return what tells the rows of a dataset from others; None where unknown."""
    pieces = open_stream(dataset).pieces
    if any(piece.digests is None for piece in pieces):
        return None
    return [(piece.name, piece.digests()) for piece in pieces]


def test_filters_that_differ_where_arrow_shortens_them_are_told_apart(tmp_path):
    pq.write_table(pa.table({"id": range(100)}), tmp_path / "a.parquet")
    files = ds.dataset(tmp_path / "a.parquet")
    asked = [
        files.filter(ds.field("id").isin([*range(45), middle, *range(46, 90)]))
        for middle in (45, 95, 45)
    ]
    assert str(asked[0]._scan_options) == str(asked[1]._scan_options)
    first, other, again = map(facts, asked)
    assert first == again != other


@pytest.mark.parametrize("filtered", [False, True])
def test_values_that_a_path_stands_for_tell_rows_from_others(tmp_path, filtered):
    pq.write_table(pa.table({"v": range(9)}), tmp_path / "a.parquet")
    found = []
    for value in (0, 1, 0):
        files = ds.FileSystemDataset.from_paths(
            [str(tmp_path / "a.parquet")],
            schema=pa.schema([("v", pa.int64()), ("label", pa.int64())]),
            format=ds.ParquetFileFormat(),
            filesystem=pafs.LocalFileSystem(),
            partitions=[ds.field("label") == value],
        )
        found.append(facts(files.filter(ds.field("v") >= 0) if filtered else files))
    assert found[0] == found[2] != found[1]


def test_rows_that_are_not_known_by_their_files_have_no_digests(tmp_path):
    pq.write_table(pa.table({"v": range(9)}), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("v\n1\n")
    files, memory = ds.dataset(tmp_path / "a.parquet"), ds.dataset(pa.table({"v": [1]}))
    options = ds.ParquetFileFormat(coerce_int96_timestamp_unit="ms")
    read_otherwise = ds.dataset(tmp_path / "a.parquet", format=options)
    assert facts(ds.dataset(tmp_path / "a.csv", format="csv")) is None
    assert facts(ds.dataset([memory, files])) is None
    assert facts(read_otherwise.filter(ds.field("v") > 0)) is None
    assert facts(ds.dataset([files, files]).filter(ds.field("v") > 0)) is not None
    assert open_stream(ds.dataset([memory, files])).stamps() != [None]


def test_a_dataset_may_have_fewer_columns_than_its_files(folder):
    names = ["age", "label"]
    schema = pa.schema([people().schema.field(name) for name in names])
    stream = open_stream(ds.dataset(folder / "data", schema=schema))
    assert list(stream.head().columns) == names
    wide = people().append_column("more", people()["age"])
    pq.write_table(wide, folder / "data/part-9.parquet")
    with pytest.raises(TableError, match=r"part-9\.parquet: .*it has 'more'"):
        open_stream(ds.dataset(folder / "data", schema=schema))
    (folder / "data/part-9.parquet").unlink()
    text = pa.schema([("age", pa.string())])
    with pytest.raises(TableError, match=r"part-0.*'age' to have the type string"):
        open_stream(ds.dataset(folder / "data", schema=text))


def test_tables_without_rows_are_refused_before_a_charge():
    none = people().slice(0, 0)
    for made in (ds.dataset, lazy_frame, relation):
        with pytest.raises(TableError, match="empty table"):
            visitor_model().fit(made(none), "label")


@pytest.mark.parametrize("made", [ds.dataset, lazy_frame, relation])
def test_streams_are_predicted_block_by_block_in_the_order_of_their_rows(
    made, monkeypatch
):
    monkeypatch.setattr("armijo.tables.stream._MOST_ROWS", 97)
    rows = people()
    model = visitor_model().fit(rows, "label")
    expected = model.predict_proba(rows.drop_columns("label"))
    np.testing.assert_array_equal(model.predict_proba(made(rows)), expected)
    linear = PrivateLogisticRegression(classes=["hi", "lo"], random_state=1)
    linear.fit(rows, "label")
    expected = linear.predict(rows.drop_columns("label"))
    np.testing.assert_array_equal(linear.predict(made(rows)), expected)


def test_files_are_predicted_on_the_command_line(folder):
    fitted(folder, "data", "out")

    def predicted(table):
        args = ["predict", folder / "out", folder / table, "--probabilities"]
        result = CliRunner().invoke(app, list(map(str, args)))
        assert result.exit_code == 0, result.output
        return result.stdout

    assert (
        predicted("data") == predicted("data/*.parquet") == predicted("whole.parquet")
    )


def sampling(**given):
    method = BLSGD(gradient_rho=0.1, search_epsilon=0.5, max_tries=3)
    known = {"classes": ["hi", "lo"], "method": method, "max_batches": 2}
    return PrivateLogisticRegression(**known | {"random_state": 1} | given)


@pytest.mark.parametrize("memory", [0, 10_000, None])
def test_batches_are_drawn_by_the_number_of_a_row_in_the_files(
    tmp_path, monkeypatch, memory
):
    """Whether nothing, batches or all rows are kept; blocks of 97 rows."""
    numbers = people().drop_columns("sex")
    expected = sampling().fit(numbers, "label").coef_
    for part in range(3):
        piece = numbers.slice(part * 300, 300)
        pq.write_table(piece, tmp_path / f"part-{part}.parquet", row_group_size=130)
    monkeypatch.setattr("armijo.tables.stream._BLOCK_NUMBERS", 1)
    monkeypatch.setattr("armijo.tables.stream._MOST_ROWS", 97)
    stream = open_stream(ds.dataset(tmp_path))
    found = sampling().fit_resumable(stream, "label", memory=memory).coef_
    np.testing.assert_array_equal(found, expected)
    reverse = replace(stream, pieces=stream.pieces[::-1])
    other = sampling().fit_resumable(reverse, "label", memory=memory).coef_
    assert (other != expected).any()  # rows have other numbers


@pytest.mark.parametrize("made", [lazy_frame, relation])
def test_queries_without_an_order_are_not_sampled(made, tmp_path):
    numbers = made(people().drop_columns("sex"))
    ledger = tmp_path / "ledger.jsonl"
    with pytest.raises(ValueError, match="rows in a fixed order for a method that"):
        sampling(random_state=None, ledger=ledger).fit(numbers, "label")
    assert not ledger.exists()


class Buckets:
    """A store of objects behind an address, as pyarrow sees those of fsspec."""

    def __init__(self, folder):
        memory = MemoryFileSystem()
        for path in (folder / "data").iterdir():
            memory.pipe(f"/bucket/{folder.name}/{path.name}", path.read_bytes())
        self.files = pafs.PyFileSystem(pafs.FSSpecHandler(memory))

    def from_uri(self, address):
        assert address.startswith("s3://")
        return self.files, address.removeprefix("s3://")


def test_addresses_of_object_stores_are_streamed(folder, monkeypatch):
    local = find_stream(folder / "data")
    monkeypatch.setattr(pafs, "FileSystem", Buckets(folder))
    address = f"s3://bucket/{folder.name}"
    stream = find_stream(address)
    assert len(stream) == N
    for own, other in zip(stream.frames(), local.frames(), strict=True):
        pd.testing.assert_frame_equal(own, other)
    for own, other in zip(stream.pieces, local.pieces, strict=True):
        assert own.digests() == other.digests() and own.stamp() == own.stamp()
    assert len(find_stream(f"{address}/part-0.parquet")) == 300
    args = ["fit", address, "--schema", str(folder / "schema.toml"), "--dry-run"]
    args += ["--out", str(folder / "out"), "--epsilon", "2", "--delta", "1e-5"]
    told = CliRunner().invoke(app, [*args, "--json"])
    assert json.loads(told.stdout)["rows"] == N
    with pytest.raises(TableError, match=r"s3://bucket/nobody: .*nothing matches"):
        find_stream("s3://bucket/nobody")


def test_addresses_of_files_are_streamed(folder):
    stream = find_stream((folder / "data").as_uri())
    assert len(stream) == N
    assert [piece.n_rows for piece in stream.pieces] == [300] * 3
    with pytest.raises(TableError, match=r"cellar://x: Expected an address"):
        find_stream("cellar://x")


def test_only_needed_columns_are_read(folder):
    asked = []
    stream = find_stream(folder / "data")
    piece = stream.pieces[0]

    def read(names, height):
        asked.append(list(names))
        return piece.read(names, height)

    watched = replace(stream, pieces=(replace(piece, read=read),))
    model = PrivateClassifier(
        schema={"sex": "ignore"}, classes=["hi", "lo"], random_state=1
    )
    model.fit(watched, "label")
    assert asked == [["age", "label"]]  # and once, since they were kept


class Killed(Exception):
    """Stands for the end of the process."""


def killed_after(folder, out, batches, **options):
    """Leave a run as a crash leaves it: charges beyond the checkpoint."""
    parameters = {**SEEDED, "random_state": None}
    checkpoint = folder / out / "checkpoint.safetensors"
    held = []

    def stop(record):
        held.append(checkpoint.read_bytes())
        if record.batch == batches:
            raise Killed

    with pytest.raises(Killed):
        fitted(folder, "data", out, parameters=parameters, callback=stop, **options)
    checkpoint.write_bytes(held[0])
    return {"parameters": parameters, "resume": True, **options}


def test_a_killed_run_goes_on_and_nothing_is_charged_twice(folder):
    again = killed_after(folder, "out", 4, memory=0)
    key = (folder / "out" / "checkpoint.safetensors.key").read_bytes()
    assert b"part-0" not in key  # names and digests are in keyed tags only
    outcome = fitted(folder, "data", "out", **again)  # a recharge would warn
    assert outcome.finished
    left = {path.name for path in (folder / "out").iterdir()}
    assert not any("checkpoint" in name for name in left)
    for path in (folder / "out").iterdir():
        assert b"part-0" not in path.read_bytes()


KEY = bytes(range(32))
UNSEEDED = {"epsilon": 2.0, "delta": 1e-5}


def kill_at(frame):
    """Let this process kill itself while it reads so many blocks of rows."""
    read, numbers = arrow_to_pandas, count(1)

    def counted(table):
        if next(numbers) == frame:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(table)

    streams.arrow_to_pandas = counted


def test_a_run_that_is_killed_in_a_pass_ends_as_it_would_have(tmp_path, monkeypatch):
    """By SIGKILL; draws of batches, sums and noise are those of the same key."""
    monkeypatch.setattr("armijo.training.replay.fresh_key", lambda: KEY)
    pq.write_table(people().drop_columns("sex"), tmp_path / "a.parquet")

    def model(name, **given):
        (tmp_path / name).mkdir(exist_ok=True)
        given |= {"checkpoint": tmp_path / name / "checkpoint", "memory": 0}
        stream = open_stream(ds.dataset(tmp_path / "a.parquet"))
        return sampling(random_state=None).fit_resumable(stream, "label", **given).coef_

    def killed():
        kill_at(4)
        model("out")

    expected = model("whole")
    assert forked(killed) == -signal.SIGKILL
    ledger = "checkpoint.ledger"
    assert charges(tmp_path / "out" / ledger)  # what they bought is not lost
    monkeypatch.delattr("armijo.training.replay.fresh_key")  # nobody draws another
    np.testing.assert_array_equal(model("out", resume=True), expected)
    assert charges(tmp_path / "out" / ledger) == charges(tmp_path / "whole" / ledger)


def charges(ledger):
    """Return what each charge of a run was for."""
    lines = ledger.read_text().splitlines()
    return [one["mechanism"] for one in map(json.loads, lines) if "mechanism" in one]


CHILD = """
import sys
from pathlib import Path
import armijo.training.replay as replay
from tests.cli import test_streaming as own
if sys.argv[3] != "resume":
    replay.fresh_key = lambda: own.KEY
if sys.argv[3] == "kill":
    own.kill_at(int(sys.argv[4]))
given = {"parameters": own.UNSEEDED, "memory": 0, "resume": sys.argv[3] == "resume"}
own.fitted(Path(sys.argv[1]), "data", sys.argv[2], **given)
"""


@pytest.mark.slow
def test_a_process_that_is_killed_again_and_again_ends_as_it_would_have(folder):
    def child(*words):
        args = [sys.executable, "-W", "error", "-c", CHILD, str(folder), *words]
        return subprocess.run(args, check=False).returncode

    assert child("whole", "run") == 0
    assert child("out", "kill", "9") == -signal.SIGKILL
    key = folder / "out" / "checkpoint.safetensors.key"
    secret = json.loads(key.read_bytes().split(b"\n")[0])["secret"]
    assert secret == KEY.hex()
    assert child("out", "resume") == 0
    ledgers = [folder / out / "ledger.jsonl" for out in ("out", "whole")]
    assert charges(ledgers[0]) == charges(ledgers[1])
    assert fitted_model(folder, "out") == fitted_model(folder, "whole")
    assert verify_run(folder / "out").verified


def test_a_file_that_changed_before_a_resume_is_named(folder):
    again = killed_after(folder, "out", 4, memory=0)
    before = (folder / "out" / "ledger.jsonl").read_bytes()
    data = folder / "data"

    def refused(said):
        with pytest.raises(ArmijoError, match=rf"that the run began with.*: {said}\."):
            fitted(folder, "data", "out", **again)
        assert (folder / "out" / "ledger.jsonl").read_bytes() == before

    shutil.copy(data / "part-1.parquet", data / "part-3.parquet")
    refused(r"\S*part-3\.parquet was added")
    (data / "part-3.parquet").rename(data / "part-2.parquet")
    refused(r"\S*part-2\.parquet was changed")
    (data / "part-2.parquet").unlink()
    refused("1 were removed or renamed")


def test_a_run_does_not_go_on_with_another_column_in_a_role(tmp_path):
    """The noise of its charges was drawn for totals of the first one."""
    table = visits().append_column("other", visits()["weight"])
    pq.write_table(table, tmp_path / "a.parquet")
    given = {"checkpoint": tmp_path / "checkpoint", "memory": 0}

    def fit(weight, **more):
        unused = {"who", "weight", "other"} - {weight}
        schema = dict.fromkeys(sorted(unused), "ignore")
        model = visitor_model(schema=schema, random_state=None, **more)
        files = ds.dataset(tmp_path / "a.parquet")
        resume = {"resume": not more}
        model.fit_resumable(files, "label", sample_weight=weight, **given, **resume)

    with pytest.raises(Killed):
        fit("weight", callback=killed)
    before = (tmp_path / "checkpoint.ledger").read_bytes()
    with pytest.raises(ArmijoError, match=r"another run: encoder\.sample_weight"):
        fit("other")
    assert (tmp_path / "checkpoint.ledger").read_bytes() == before


CODED = {
    "schema": {"sex": ["f", "m"], "weight": "ignore", "who": "ignore"},
    "classes": ["hi", "lo"],
    "pairs": False,
}
OTHERWISE = [
    ({"schema": {**CODED["schema"], "sex": ["f", "x"]}}, "schema"),
    ({"classes": ["hi", "low"]}, "classes"),
    ({"schema": {**CODED["schema"], "weight": "numeric"}}, "schema"),
]


def test_a_run_does_not_go_on_with_rows_that_are_coded_otherwise(tmp_path):
    """Nor does it go on as another model; with the same settings it does."""
    pq.write_table(visits(), tmp_path / "a.parquet")
    given = {"checkpoint": tmp_path / "checkpoint", "memory": 0}

    def fit(made=PrivateClassifier, resume=True, callback=None, **settings):
        files = ds.dataset(tmp_path / "a.parquet")
        model = made(**{**CODED, "n_rows": N, **settings}, callback=callback)
        model.fit_resumable(files, "label", **given, resume=resume)
        return model

    with pytest.raises(Killed):
        fit(resume=False, callback=killed)
    before = (tmp_path / "checkpoint.ledger").read_bytes()
    for settings, fact in OTHERWISE:
        with pytest.raises(ArmijoError, match=rf"another run: encoder\.{fact} is"):
            fit(**settings)
        assert (tmp_path / "checkpoint.ledger").read_bytes() == before
    assert hasattr(fit(), "model_")


def test_a_linear_run_does_not_go_on_with_other_classes(tmp_path):
    pq.write_table(people().drop_columns("sex"), tmp_path / "a.parquet")

    def stop(record):
        raise Killed

    def fit(resume=True, **settings):
        model = sampling(random_state=None, **settings)
        files = ds.dataset(tmp_path / "a.parquet")
        given = {"checkpoint": tmp_path / "checkpoint", "resume": resume}
        return model.fit_resumable(files, "label", **given)

    with pytest.raises(Killed):
        fit(resume=False, callback=stop)
    with pytest.raises(ArmijoError, match=r"another run: encoder\.classes is .*'low'"):
        fit(classes=["hi", "low"])
    fit()


def killed(record):
    if record.batch == 3:
        raise Killed


def test_a_file_that_changed_between_passes_ends_the_run(folder):
    seen = []

    def change(record):
        seen.append(record.batch)
        if record.batch == 2:
            os.utime(folder / "data/part-1.parquet", ns=(1, 1))

    with pytest.raises(ArmijoError, match=r"part-1\.parquet: Expected the file as it"):
        fitted(folder, "data", "out", memory=0, callback=change)
    assert seen == [0, 1, 2]


def test_a_file_that_changed_while_another_was_read_ends_the_run(folder, monkeypatch):
    """Within one pass: the total would be of rows of two times."""
    numbers, read = count(1), arrow_to_pandas

    def changing(table):
        if next(numbers) == 5:  # of nine blocks of a pass, in the second file of three
            os.utime(folder / "data/part-2.parquet", ns=(1, 1))
        return read(table)

    seen = []
    monkeypatch.setattr(streams, "_MOST_ROWS", 130)
    monkeypatch.setattr(streams, "arrow_to_pandas", changing)
    with pytest.raises(ArmijoError, match=r"part-2\.parquet: Expected the file as it"):
        fitted(folder, "data", "out", memory=0, callback=seen.append)
    assert seen == []


def test_a_file_of_the_same_size_and_time_in_the_place_of_another_is_found(folder):
    path = folder / "data/part-1.parquet"

    def change(record):
        other, before = path.with_suffix(".other"), path.stat()
        other.write_bytes(path.read_bytes())
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(path)

    with pytest.raises(ArmijoError, match=r"part-1\.parquet: Expected the file as it"):
        fitted(folder, "data", "out", memory=0, callback=change)


def test_another_total_for_the_same_charge_ends_the_run(folder, monkeypatch):
    again = killed_after(folder, "out", 4, memory=0)

    def spoiled(frames):
        def yielded(self, *given):
            for frame in frames(self, *given):
                frame["age"] = frame["age"] * 0.5
                yield frame

        return yielded

    monkeypatch.setattr(StreamedTable, "frames", spoiled(StreamedTable.frames))
    with pytest.raises(ArmijoError, match="came to another result"):
        fitted(folder, "data", "out", **again)


def bad_type(data):
    table = people().slice(0, 9)
    age = table["age"].cast(pa.string())
    pq.write_table(table.set_column(0, "age", age), data / "part-9.parquet")
    return r"part-9\.parquet: .*'age' to have the type float as in .*got string"


def bad_columns(data):
    pq.write_table(people().drop_columns("sex"), data / "part-9.parquet")
    return r"part-9\.parquet: .*it lacks 'sex'"


def more_columns(data):
    pq.write_table(people().append_column("more", people()["age"]), data / "part-9")
    return r"part-9: .*it has 'more'"


def one_name_twice(data):
    table = people().rename_columns(["age", "age", "label"])
    pq.write_table(table, data / "part-0.parquet")
    return r"part-0\.parquet: Expected different names of columns, got 'age' twice"


def one_file_twice(data):
    (data / "part-9.parquet").symlink_to(data / "part-0.parquet")
    return r"part-9\.parquet: Expected each file once"


def no_file(data):
    (data / "part-9.parquet").write_text("age,sex,label\n1,f,lo\n")
    return r"part-9\.parquet: Expected a Parquet file, got"


def empty_file(data):
    (data / "part-9.parquet").write_bytes(b"")
    return r"part-9\.parquet: .*empty file"


def no_rows(data):
    pq.write_table(people().slice(0, 0), data / "part-9.parquet")
    return r"part-9\.parquet: .*an empty table"


def truncated_file(data):
    whole = (data / "part-0.parquet").read_bytes()
    (data / "part-9.parquet").write_bytes(whole[:-40])
    return r"part-9\.parquet: Expected a Parquet file"


def truncated_group(data):
    """Pages are gone, the footer is whole."""
    whole = (data / "part-0.parquet").read_bytes()
    footer = int.from_bytes(whole[-8:-4], "little") + 8
    (data / "part-9.parquet").write_bytes(whole[:200] + whole[-footer:])
    return r"part-9\.parquet: Expected row group \d to end within the file"


def nothing(data):
    shutil.rmtree(data)
    data.mkdir()
    return "got none: nothing matches"


@pytest.mark.parametrize(
    "spoil",
    [
        *(bad_type, bad_columns, more_columns, one_name_twice, one_file_twice),
        *(no_file, empty_file, no_rows, truncated_file, truncated_group, nothing),
    ],
)
def test_bad_input_is_named_before_any_charge(folder, spoil):
    said = spoil(folder / "data")
    with pytest.raises(TableError, match=said):
        fitted(folder, "data", "out")
    assert not (folder / "out").exists()


def test_a_pattern_that_matches_nothing_is_named(folder):
    with pytest.raises(TableError, match=r"\*\.parq: Expected Parquet files, got none"):
        fitted(folder, "data/*.parq", "out")
    dataset = ds.dataset([folder / "data/part-0.parquet"] * 2)
    with pytest.raises(TableError, match="Expected each file once, got it twice"):
        open_stream(dataset)


def test_pages_that_cannot_be_decoded_name_their_file_and_release_nothing(tmp_path):
    """They are found in the pass that reads them, which is paid for by then."""
    path = tmp_path / "a.parquet"
    pq.write_table(people().drop_columns("sex"), path, compression="none")
    spoiled = bytearray(path.read_bytes())
    spoiled[10:40] = b"\xff" * 30
    path.write_bytes(spoiled)
    ledger = tmp_path / "ledger.jsonl"
    model = sampling(random_state=None, ledger=ledger)
    with pytest.raises(
        ArmijoError, match=r"a\.parquet: Expected rows that can be read"
    ):
        model.fit_resumable(ds.dataset(path), "label", memory=0)
    assert len(charges(ledger)) == 1 and not hasattr(model, "coef_")


SECRET = "SECRET-9"


def csv_dataset(table: pa.Table, path: Path):
    """Return a dataset of which a cell beyond the block that has its types is text."""
    lines = [f"{10**12 + k},{k % 2}" for k in range(150_000)]  # more than 1 MiB
    (path / "a.csv").write_text("\n".join(["age,label", *lines, f"{SECRET},1", ""]))
    return ds.dataset(path / "a.csv", format="csv")


def filter_with_a_cast(table: pa.Table, path: Path):
    pq.write_table(table, path / "a.parquet")
    return ds.dataset(path / "a.parquet").filter(ds.field("age").cast("int64") > 3)


def lazy_cast(table: pa.Table, path: Path):
    polars = pytest.importorskip("polars")
    return lazy_frame(table).with_columns(polars.col("age").cast(polars.Int64))


def lazy_filter(table: pa.Table, path: Path):
    polars = pytest.importorskip("polars")
    return lazy_frame(table).filter(polars.col("age").cast(polars.Int64) > 3)


def cast_in_sql(table: pa.Table, path: Path):
    return relation(table).project("cast(age as int) as age, label")


def filter_in_sql(table: pa.Table, path: Path):
    return relation(table).filter("cast(age as int) > 3")


AT_A_ROW = csv_dataset, lazy_cast, cast_in_sql
IN_THE_COUNT = filter_with_a_cast, lazy_filter, filter_in_sql


@pytest.mark.parametrize("made", [*AT_A_ROW, *IN_THE_COUNT])
def test_a_source_that_fails_at_a_row_tells_the_kind_of_error_only(made, tmp_path):
    table = pa.table({"age": ["12"] * 399 + [SECRET], "label": [0, 1] * 200})
    model = PrivateClassifier(classes=[0, 1], random_state=1)
    with pytest.raises(ArmijoError, match=r"\w+ stopped the reader; .*mend") as caught:
        model.fit_resumable(made(table, tmp_path), "label", memory=0)
    assert SECRET not in "".join(format_exception(caught.value))
    unspent = "Nothing was spent" in str(caught.value)
    assert unspent == (made in IN_THE_COUNT)


def test_a_column_of_the_wrong_type_is_refused_by_its_type(folder):
    schema = SCHEMA.replace('"numeric"\nlow = 0\nhigh = 100', '"date"')
    (folder / "schema.toml").write_text(schema)
    with pytest.raises(TableError, match="Expected dates in column 'age', got numbers"):
        fitted(folder, "data", "out")
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"y": np.zeros(N)}, "y to be the name of a column"),
        ({"y": "lable"}, "did you mean 'label'"),
        ({"y": "label", "sample_weight": np.ones(N)}, "sample_weight to be the name"),
        ({"y": "label", "sample_weight": "agee"}, "sample_weight to name .*'age'"),
        ({"y": "label", "person": np.ones(N)}, "persons as a column"),
    ],
)
def test_what_needs_rows_in_memory_is_refused(given, said):
    model = PrivateClassifier(classes=["hi", "lo"])
    with pytest.raises((ValueError, TableError), match=said):
        model.fit(ds.dataset(people()), **given)


def test_classes_are_never_read_from_a_stream():
    with pytest.raises(ValueError, match="two classes= for rows that are streamed"):
        PrivateClassifier().fit(ds.dataset(people()), "label")


def test_a_dry_run_reads_metadata_and_spends_nothing(folder, monkeypatch):
    def refuse(*given, **named):
        raise AssertionError("a row was read")

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", refuse)
    monkeypatch.setattr(pq.ParquetFile, "read", refuse)
    for table in ("data", "whole.parquet"):
        args = ["fit", str(folder / table), "--schema", str(folder / "schema.toml")]
        args += ["--out", str(folder / "out"), "--epsilon", "1", "--delta", "1e-5"]
        result = CliRunner().invoke(app, [*args, "--dry-run", "--json"])
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert told["rows"] == N and told["rows_known_from"] == "file metadata"
        assert told["spent"] == 0 and told["epsilon"] == 1
        assert not (folder / "out").exists()


def test_a_dry_run_counts_the_passes_of_the_fit(folder):
    asked = []
    stream = open_stream(ds.dataset(people()))
    piece = stream.pieces[0]

    def read(names, height):
        asked.append(1)
        return piece.read(names, height)

    watched = replace(stream, pieces=(replace(piece, read=read),))
    PrivateClassifier(schema=folder / "schema.toml", **SEEDED).fit_resumable(
        watched, memory=0
    )
    args = ["fit", str(folder / "data"), "--schema", str(folder / "schema.toml")]
    args += ["--out", str(folder / "out"), "--epsilon", "2", "--delta", "1e-5"]
    result = CliRunner().invoke(app, [*args, "--dry-run", "--json", "--memory", "0"])
    told = json.loads(result.stdout)
    assert told["passes"] == told["reads_of_the_files"] == len(asked)


def test_row_groups_that_were_left_out_are_not_trained_on(tmp_path):
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"a": list(range(100))}), path, row_group_size=20)
    whole = ds.dataset(path)
    (fragment,) = whole.get_fragments()
    for chosen, rows in ([1], None), ([0, 1, 2, 3, 4], 100):
        part = fragment.subset(row_group_ids=chosen)
        data = ds.FileSystemDataset(
            [part], whole.schema, whole.format, whole.filesystem
        )
        if rows is not None:
            assert len(open_stream(data)) == rows
            continue
        with pytest.raises(TableError, match="some of its row groups"):
            open_stream(data)
