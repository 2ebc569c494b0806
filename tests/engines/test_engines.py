# SPDX-License-Identifier: Apache-2.0
"""Every engine gives the bits of rows in memory: fit, predict, and after a kill."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from armijo import PrivateClassifier, PrivateLogisticRegression, PrivateRegressor
from armijo.accounting.ledger import read_ledger
from armijo.cli import app
from armijo.cli.fit import fit_table
from armijo.data.blocks import SumTask
from armijo.data.query import Rows, Taken
from armijo.engines import open_blocks
from armijo.engines.blocks import EngineRows, Failure
from armijo.engines.dask import files_on_dask
from armijo.engines.files import open_files
from armijo.engines.spark import files_on_spark
from armijo.errors import (
    ArmijoError,
    LedgerError,
    TableError,
)
from armijo.methods.sgd import DPSGD
from armijo.training.replay import key_path
from tests.engines import driver

FEATURES = ["age", "town"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning"),
    # What Spark itself does with the pandas that is installed.
    pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The copy keyword:DeprecationWarning"),
    # Sockets of an engine that go with their process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class OnDask:
    """Tables of Dask."""

    name = "dask"

    @staticmethod
    def table(frame, parts=3):
        from dask import dataframe

        return dataframe.from_pandas(frame, npartitions=parts)

    @staticmethod
    def shuffled(table):
        return table.shuffle(table.columns[0])


class OnSpark:
    """Tables of Spark."""

    name = "spark"

    def __init__(self, session):
        self.session = session

    def table(self, frame, parts=3):
        return self.session.createDataFrame(frame).repartition(parts)

    @staticmethod
    def shuffled(table):
        return table  # as any table of Spark


@pytest.fixture(params=["dask", "spark"])
def engine(request):
    if request.param == "dask":
        request.getfixturevalue("client")
        return OnDask()
    return OnSpark(request.getfixturevalue("spark"))


def classifier(**more):
    given = {"epsilon": 1.0, "classes": ["low", "high"], "random_state": 7}
    return PrivateClassifier(**given | more)


@pytest.mark.parametrize("parts", [5, pytest.param(2, marks=pytest.mark.slow)])
def test_a_table_in_any_partitions_gives_the_bits_of_memory(engine, people, parts):
    held = classifier().fit(people, "income")
    model = classifier().fit(engine.table(people, parts), "income")
    scores = model.decision_function(people[FEATURES])
    assert np.array_equal(scores, held.decision_function(people[FEATURES]))
    assert model.privacy_.to_dict() == held.privacy_.to_dict()


def test_regression_and_linear_models_too(engine, people):
    rows = people.assign(age=people["age"].fillna(0.0))
    made = PrivateRegressor(epsilon=1.0, random_state=7, target_bounds=(0, 100))
    held = made.fit(rows, "age").predict(rows[["town", "income"]])
    made.fit(engine.table(rows), "age")
    assert np.array_equal(made.predict(rows[["town", "income"]]), held)
    numbers = people[["age", "income"]].assign(twice=2 * people["age"])
    linear = PrivateLogisticRegression(classes=["low", "high"], random_state=7)
    held = linear.fit(numbers, "income").coef_.copy()
    assert np.array_equal(linear.fit(engine.table(numbers), "income").coef_, held)


def test_what_is_refused_costs_nothing(engine, people, tmp_path):
    ledger = tmp_path / "ledger"
    table = engine.table(people)
    with pytest.raises(ValueError, match="classes"):
        classifier(classes=None, ledger=ledger).fit(table, "income")
    with pytest.raises(TableError, match="person"):
        classifier(person="town", n_rows=3, ledger=ledger).fit(table, "income")
    with pytest.raises(TableError, match="name a column"):
        classifier(ledger=ledger).fit(table, "incom")
    with pytest.raises(ValueError, match="y to be"):
        classifier(ledger=ledger).fit(table[FEATURES], people["income"].to_numpy())
    sampled = PrivateLogisticRegression(
        method=DPSGD(steps=3), classes=["low", "high"], ledger=ledger, random_state=1
    )
    with pytest.raises(ValueError, match="rows in a fixed order"):
        sampled.fit(engine.shuffled(table[["age", "income"]]), "income")
    assert not ledger.exists()


def as_they_are(rows):
    return rows.X


def encoded(frame):
    X = frame.to_numpy(dtype=float)
    return Taken(X, np.ones(len(X)))


TASK = SumTask(as_they_are, 1.0, 3.0)


def rows_of(table):
    return open_blocks(table, None)[0].rows(encoded, columns=["a"], cell_bytes=8)


def numbers(engine):
    return engine.table(pd.DataFrame({"a": np.arange(1, 9) / 100}), 2)


def other(answer, change):
    """Return an answer with another sum."""
    exact = answer.exact
    return answer._replace(exact=replace(exact, steps=change(exact.steps)))


def first_changed(change):
    def spoil(asked):
        with_sum = next(k for k, one in enumerate(asked) if one.exact is not None)
        found = list(asked)
        found[with_sum] = other(found[with_sum], change)
        return found

    return spoil


def all_changed(change):
    def spoil(asked):
        return [one if one.exact is None else other(one, change) for one in asked]

    return spoil


def exchanged(asked):
    """Two blocks answer in each other's place."""
    first, second, *rest = asked
    places = second._replace(place=first.place), first._replace(place=second.place)
    return [*places, *rest]


ATTACKS = {
    "lost": (lambda asked: asked[:-1], "1 were lost"),
    "twice": (lambda asked: [*asked, asked[0]], "counted twice"),
    "all twice": (lambda asked: asked * 2, "counted twice"),
    "exchanged": (exchanged, "changed"),
    "fails": (lambda asked: [Failure("an error of type X"), *asked], "of type X"),
    "stranger": (lambda asked: [*asked, asked[0]._replace(place="?")], "changed"),
    "another number of rows": (
        lambda asked: [
            asked[0]._replace(entry=asked[0].entry._replace(n_rows=3)),
            *asked[1:],
        ],
        "changed",
    ),
    "other bytes": (
        lambda asked: [
            asked[0]._replace(entry=asked[0].entry._replace(digest=b"x")),
            *asked[1:],
        ],
        "changed",
    ),
    "longer": (first_changed(lambda s: torch.cat([s, s])), "sums of one task|add up"),
    "a table": (all_changed(lambda s: s[None]), "that the rows of the table can add"),
    "floats": (all_changed(torch.Tensor.double), "that the rows of the table can add"),
    "huge": (all_changed(lambda s: s + 2**62), "that the rows of the table can add"),
    "a bit": (first_changed(lambda s: s ^ -(2**63)), "that the rows of the table can"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_total_that_is_not_of_each_partition_once_ends_the_run(answered, attack):
    spoil, said = ATTACKS[attack]
    rows, asked = answered
    rows._ask = lambda task: iter(spoil(asked))
    with pytest.raises(ArmijoError, match=said) as refused:
        rows.total(TASK)
    assert "Nothing of this total was released" in str(refused.value)


@pytest.fixture
def answered(engine):
    """Rows of an engine, and what its workers answer."""
    rows = rows_of(numbers(engine))
    return rows, list(rows._ask(TASK))


def test_answers_as_they_come_are_the_sum_and_what_is_refused_is_another(answered):
    """The attacks are real: without its checks a total would follow them."""
    rows, asked = answered
    held = TASK(Rows(np.arange(1, 9)[:, None] / 100, np.ones(8))).steps
    rows._ask = lambda task: iter(asked[::-1])
    assert rows.total(TASK).steps.tolist() == held.tolist()
    rows._checked = lambda answers: (a.exact for a in answers if a.exact is not None)
    rows._refuse_impossible = lambda exact: None
    for name in ("all twice", "huge", "a bit"):
        rows._ask = lambda task, name=name: iter(ATTACKS[name][0](asked))
        assert rows.total(TASK).steps.tolist() != held.tolist()


def test_a_partition_that_is_coded_twice_is_refused_before_a_charge(answered):
    rows, _ = answered
    entries = [*rows._entries.items(), next(iter(rows._entries.items()))]
    with pytest.raises(ArmijoError, match=r"one twice\. Nothing was spent"):
        EngineRows(entries, rows._ask)


@pytest.mark.parametrize("name", ["dask", "spark"])
def test_pages_that_a_worker_cannot_read_name_their_file(
    request, name, tmp_path, monkeypatch
):
    request.getfixturevalue("client" if name == "dask" else "spark")
    for part in "ab":
        table = pa.table({"a": np.arange(50.0)})
        pq.write_table(table, tmp_path / f"{part}.parquet", compression="none")
    spoiled = bytearray((tmp_path / "b.parquet").read_bytes())
    spoiled[10:40] = b"\xff" * 30
    (tmp_path / "b.parquet").write_bytes(spoiled)
    files = open_files(tmp_path)
    if name == "dask":
        from distributed import get_client

        table = files_on_dask(files, get_client())
    else:
        table = files_on_spark(files, None)
    with pytest.raises(TableError, match=r"b\.parquet.* Nothing was spent"):
        table.rows(encoded, columns=["a"], cell_bytes=8)


def test_weights_are_a_column(engine, people):
    weight = np.linspace(0, 1, len(people))
    held = classifier().fit(people, "income", sample_weight=weight)
    table = engine.table(people.assign(weight=weight), 3)
    model = classifier().fit(table, "income", sample_weight="weight")
    scores = model.decision_function(people[FEATURES])
    assert np.array_equal(scores, held.decision_function(people[FEATURES]))
    unweighted = classifier().fit(people, "income").decision_function(people[FEATURES])
    assert (scores != unweighted).any()


def test_a_run_is_not_resumed_by_another_engine(engine, files, tmp_path, monkeypatch):
    if engine.name == "dask":
        from distributed import get_client

        here = get_client()
        monkeypatch.setattr("armijo.engines.dask.client_of", lambda _: Here(here))
    out = tmp_path / "run"
    given = {
        "schema": files / "schema.toml",
        "parameters": {"epsilon": 1.0, "delta": 1e-5},
        "out": out,
    }

    def stop(record):
        if record.batch == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_table(files / "data", engine=engine.name, callback=stop, **given)
    before = (out / "ledger.jsonl").read_bytes()
    others = {None, "dask", "spark"} - {engine.name}
    if engine.name == "dask":
        others -= {"spark"}  # which need not be there
    for name in others:
        with pytest.raises(ArmijoError, match="engine"):
            fit_table(files / "data", engine=name, resume=True, **given)
        assert (out / "ledger.jsonl").read_bytes() == before
    # Nor with its rows in other partitions, which its key was not made for.
    monkeypatch.setattr("armijo.engines.files.PART_BYTES", 1)
    with pytest.raises(ArmijoError, match="the partitions are not the same"):
        fit_table(files / "data", engine=engine.name, resume=True, **given)
    assert (out / "ledger.jsonl").read_bytes() == before


@pytest.fixture
def on_dask(client, files, tmp_path, monkeypatch):
    """What fits the files on the workers of this process."""
    monkeypatch.setattr("armijo.engines.dask.client_of", lambda _: Here(client))
    given = {
        "schema": files / "schema.toml",
        "parameters": {"epsilon": 1.0, "delta": 1e-5},
        "engine": "dask",
        "out": tmp_path / "run",
    }
    return given


def test_two_drivers_do_not_share_a_run(on_dask, files):
    """A second one that resumes would draw the same noise for charges of its own."""
    refused = []

    def second(record):
        with pytest.raises(LedgerError, match="in use by another"):
            fit_table(files / "data", resume=True, **on_dask)
        refused.append(record.batch)
        return record.batch == 2

    fit_table(files / "data", callback=second, **on_dask)
    assert refused == [0, 1, 2]
    assert fit_table(files / "data", resume=True, **on_dask).finished


def model_of(folder):
    model = json.loads((Path(folder) / "model.json").read_text())
    return {name: part for name, part in model.items() if name != "privacy"}


@pytest.fixture
def in_memory(files, tmp_path, monkeypatch):
    """The model of an uninterrupted run in memory with the key of all drivers."""
    monkeypatch.setattr("armijo.training.replay.fresh_key", None)  # restored at the end
    driver.fit("memory", files, tmp_path / "memory")
    return model_of(tmp_path / "memory")


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        pytest.param("additive", "data", marks=pytest.mark.slow),
        ("logistic", "data/[0-9].parquet"),
    ],
)
def test_files_through_an_engine_give_the_model_of_memory(
    engine, files, tmp_path, kind, table, monkeypatch
):
    if engine.name == "dask":  # in place of a cluster of its own
        from distributed import get_client

        here = get_client()
        monkeypatch.setattr("armijo.engines.dask.client_of", lambda _: Here(here))
    given = {
        "schema": files / "schema.toml",
        "kind": kind,
        "parameters": {"epsilon": 1.0, "delta": 1e-5, "random_state": 7},
    }
    fit_table(files / "data", out=tmp_path / "memory", **given)
    out = tmp_path / "run"
    fit_table(str(files / table), out=out, engine=engine.name, **given)
    assert model_of(out) == model_of(tmp_path / "memory")


class Here:
    """A client that outlives who uses it."""

    def __init__(self, client):
        self._client = client

    def __enter__(self):
        return self._client

    def __exit__(self, *_):
        return None


def run_driver(engine, files, out, *flags, **environment):
    place = Path(__file__).parents[2]
    found = os.environ.get("PYTHONPATH", "")
    return subprocess.run(
        [sys.executable, "-m", "tests.engines.driver", engine, files, out, *flags],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f"{place}:{found}", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", "spark"])
def test_a_killed_driver_goes_on_to_the_model_of_an_uninterrupted_run(
    request, name, files, tmp_path, in_memory
):
    if name == "spark":
        request.getfixturevalue("spark_needs")
    out = tmp_path / "run"
    assert run_driver(name, files, out, "--die").returncode == -signal.SIGKILL
    charges = read_ledger(out / "ledger.jsonl").charges
    assert len(charges) == driver.LAST + 1 and not (out / "model.json").exists()
    resumed = run_driver(name, files, out, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout.strip() == "charged again:"
    assert model_of(out) == in_memory
    again = read_ledger(out / "ledger.jsonl").charges
    assert again[: len(charges)] == charges  # and none of them twice
    assert [charge.index for charge in again] == list(range(len(again)))
    assert not list(out.glob("*.key"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dask", "spark"])
def test_after_a_kill_workers_of_another_kind_get_no_noise_of_the_old_key(
    request, name, files, tmp_path
):
    if name == "spark":
        request.getfixturevalue("spark_needs")
    out = tmp_path / "run"
    assert run_driver(name, files, out, "--die").returncode == -signal.SIGKILL
    slower = {"ATEN_CPU_CAPABILITY": "default"}
    resumed = run_driver(name, files, out, "--resume", **slower)
    assert "charged again: The charges after the checkpoint" in resumed.stdout
    assert "the workers" in resumed.stdout and "machine" in resumed.stdout


def test_what_workers_are_is_a_fact_of_the_run_key(
    on_dask, files, tmp_path, monkeypatch
):
    from armijo.engines import blocks

    def stop(record):
        if record.batch == 3:
            raise KeyboardInterrupt  # the checkpoint is that of the start

    monkeypatch.setattr("armijo.training.run.Run._save", first_only())
    with pytest.raises(KeyboardInterrupt):
        fit_table(files / "data", callback=stop, **on_dask)
    before = len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges)
    newer = blocks.environment()._replace(pandas="99.0")
    for module in ("blocks", "dask"):  # the workers are threads of this process
        monkeypatch.setattr(f"armijo.engines.{module}.environment", lambda: newer)
    # The plan of an automatic method has no room for steps that are charged again.
    with pytest.raises(ArmijoError, match=r"changed since then: the workers\."):
        fit_table(files / "data", resume=True, **on_dask)
    assert len(read_ledger(tmp_path / "run" / "ledger.jsonl").charges) == before == 4
    assert key_path(tmp_path / "run" / "checkpoint.safetensors").is_file()


def first_only():
    """Return a way to write the first checkpoint and no other."""
    from armijo.training.run import Run

    save, done = Run._save, []

    def first(self):
        if not done:
            done.append(True)
            save(self)

    return first


def test_an_engine_that_is_not_there_costs_nothing(files, tmp_path):
    pytest.importorskip("distributed", reason="needs armijo[dask]")
    given = {
        "schema": files / "schema.toml",
        "out": tmp_path / "run",
        "parameters": {"epsilon": 1.0, "delta": 1e-5},
    }
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("armijo.engines.dask._PATIENCE", 0.3)
        args = [
            "fit",
            files / "data",
            "--schema",
            given["schema"],
            "--out",
            given["out"],
        ]
        args += ["--epsilon", 1, "--delta", 1e-5, "--engine", "dask"]
        args += ["--scheduler", "tcp://127.0.0.1:9"]
        error = CliRunner().invoke(app, list(map(str, args))).exception
        assert isinstance(error, ArmijoError) and "Nothing was spent" in str(error)
        assert "tcp://127.0.0.1:9" in str(error)
    with pytest.raises(ValueError, match="one of"):
        fit_table(files / "data", engine="ray", **given)
    with pytest.raises(ValueError, match="--engine"):
        fit_table(files / "data", scheduler="tcp://127.0.0.1:9", **given)
    with pytest.raises(TableError, match="Parquet"):
        fit_table(files / "schema.toml", engine="dask", **given)
    assert not (tmp_path / "run").exists()
