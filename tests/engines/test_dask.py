# SPDX-License-Identifier: Apache-2.0
"""Tables of Dask: labels, arrays, predictions, and workers that die."""

import os
import pickle
import signal
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from armijo import (
    PrivateClassifier,
    PrivateLinearSVC,
    PrivateLogisticRegression,
    PrivateRegressor,
)
from armijo._noise import PoissonRows
from armijo.data.blocks import SumTask
from armijo.data.query import Rows, Taken
from armijo.engines import open_blocks
from armijo.engines.blocks import (
    Answer,
    BatchTask,
    Entry,
    Failure,
    environment,
    refuse_environment,
)
from armijo.engines.dask import _keeps_order
from armijo.errors import ArmijoError, TableError
from armijo.methods.line_search import BLSGD
from armijo.methods.sgd import DPSGD
from armijo.randomness import Randomness
from tests.engines.conftest import dask_client

pytest.importorskip("distributed", reason="needs the extra armijo[dask]")
dd = pytest.importorskip("dask.dataframe", reason="needs the extra armijo[dask]")
da = pytest.importorskip("dask.array", reason="needs the extra armijo[dask]")

FEATURES = ["age", "town"]
pytestmark = [
    pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning"),
    # A worker that a test kills leaves its sockets to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def classifier(**more):
    given = {"epsilon": 1.0, "classes": ["low", "high"], "random_state": 7}
    return PrivateClassifier(**given | more)


def numbers():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4)).astype(np.float32)
    y = (X[:, 0] + 0.3 * rng.normal(size=200) > 0).astype(int)
    X[5] = np.nan
    return X, y


def test_predictions_are_lazy_and_have_the_index_of_the_rows(client, people):
    model = classifier().fit(people, "income")
    rows = people[FEATURES]
    frame = dd.from_pandas(rows, npartitions=3)
    lazy = model.predict(frame)
    assert np.array_equal(lazy.compute().to_numpy(), model.predict(rows))
    assert lazy.compute().index.equals(rows.index)
    shares = model.predict_proba(frame).compute().to_numpy()
    assert np.array_equal(shares, model.predict_proba(rows))


METHODS = {
    "sgd": DPSGD(steps=4, sampling_prob=0.3, step_size=0.5),
    "blsgd": BLSGD(gradient_rho=0.1, search_epsilon=0.5, max_tries=3),
}


@pytest.mark.parametrize("method", METHODS)
def test_batches_are_drawn_by_the_number_of_a_row(client, method):
    X, y = numbers()
    made = PrivateLogisticRegression(
        method=METHODS[method], classes=[0, 1], random_state=7, max_batches=4
    )
    held = made.fit(X, y).coef_.copy()
    for sizes in ((200,), (60, 0, 90, 50), (7,) * 28 + (4,)):
        rows, labels = (da.from_array(a, chunks=-1).rechunk({0: sizes}) for a in (X, y))
        assert np.array_equal(made.fit(rows, labels).coef_, held)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(y=y)
    table = dd.from_pandas(frame, npartitions=3)
    assert np.array_equal(made.fit(table, "y").coef_, held)
    turned = dd.concat([table.partitions[k] for k in (2, 0, 1)])
    assert (made.fit(turned, "y").coef_ != held).any()  # rows have other numbers


def test_what_is_known_to_keep_the_order_of_rows(client, tmp_path):
    rows = pd.DataFrame({"a": range(40), "b": [1, 2] * 20})
    rows.to_parquet(tmp_path / "rows.parquet")
    frame = dd.from_pandas(rows, npartitions=4)
    files = dd.read_parquet(tmp_path)
    kept = [files[files.a > 3].assign(c=1), dd.concat([frame, files]), frame.persist()]
    kept += [frame.repartition(npartitions=n) for n in (2, 9)]
    assert all(map(_keeps_order, kept))
    lost = [frame.shuffle("b"), frame.merge(frame, on="b"), frame.sort_values("b")]
    lost += [frame.set_index("b"), frame.drop_duplicates(), dd.concat([*kept, lost[1]])]
    assert not any(map(_keeps_order, lost))


def test_workers_get_the_bits_of_one_batch_only():
    """Neither the run key nor a stream of noise travels with a batch."""
    randomness = Randomness(bytes(range(32))).for_charge(3)
    batch = PoissonRows(0.5, randomness.row_bits())
    sent = pickle.dumps(BatchTask(SumTask(np.sum, 1.0, 3.0), batch, {0: 0}))
    assert bytes(range(32)) not in sent
    chosen = batch.chosen(0, 50).tolist()
    assert pickle.loads(sent).batch.chosen(0, 50).tolist() == chosen
    other = PoissonRows(0.5, Randomness(bytes(range(32))).for_charge(4).row_bits())
    assert other.chosen(0, 50).tolist() != chosen


def test_labels_may_lie_beside_the_rows(client, people):
    rows = people[["town"]].assign(size=people["age"].fillna(0.0))
    target = rows["size"] * 2
    made = PrivateRegressor(epsilon=1.0, random_state=7, target_bounds=(0, 200))
    held = made.fit(rows, target.to_numpy()).predict(rows)
    frame = dd.from_pandas(rows.assign(t=target), npartitions=3)
    made.fit(frame[["town", "size"]], frame["t"])
    assert np.array_equal(made.predict(rows), held)
    other = dd.from_pandas(target, npartitions=2)
    with pytest.raises(ValueError, match="as many partitions"):
        made.fit(frame[["town", "size"]], other)


@pytest.mark.parametrize(
    "kind",
    [
        PrivateLogisticRegression,
        pytest.param(PrivateLinearSVC, marks=pytest.mark.slow),
    ],
)
def test_linear_models_of_arrays(client, kind):
    X, y = numbers()
    made = kind(epsilon=1.0, classes=[0, 1], random_state=7, loss=None)
    held = made.fit(X, y).coef_.copy()
    chunks = da.from_array(X, chunks=(90, 2)), da.from_array(y, chunks=40)
    assert np.array_equal(made.fit(*chunks).coef_, held)
    finite = np.nan_to_num(X)
    lazy = made.predict(da.from_array(finite, chunks=(90, 4)))
    assert np.array_equal(lazy.compute(), made.predict(finite))


@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_changes_nothing(processes, people):
    frame = dd.from_pandas(people, npartitions=4)
    pids, killed = processes.run(os.getpid), []

    def kill(record):
        if record.batch == 3 and not killed:
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    model = classifier(callback=kill).fit(frame, "income")
    assert killed and killed[0] not in processes.run(os.getpid).values()
    held = classifier().fit(people, "income").decision_function(people[FEATURES])
    assert np.array_equal(model.decision_function(people[FEATURES]), held)


@pytest.mark.slow
def test_a_real_worker_of_another_kind_is_refused():
    cluster, client = dask_client(env={"ATEN_CPU_CAPABILITY": "default"})
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(8.0)}), npartitions=2)
    with cluster, client, client.as_current():
        table, _ = open_blocks(frame, None)
        with pytest.raises(ArmijoError, match=r"cpu_capability .* Nothing was spent"):
            table.rows(encoded, columns=["a"], cell_bytes=8)


def encoded(frame):
    X = frame.to_numpy()
    return Taken(X, np.ones(len(X)))


def as_they_are(rows):
    return rows.X


TASK = SumTask(as_they_are, 1.0, 3.0)


def changing(part, partition_info=None):
    """A partition that is another one each time it is made."""
    return part + np.random.default_rng().normal(size=part.shape)


def turned(part, partition_info=None):
    """The same rows in another order each time."""
    return part.sample(frac=1.0)


@pytest.mark.parametrize("change", [changing, turned])
def test_a_partition_that_changed_ends_the_run(client, change):
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(80.0)}), npartitions=2)
    table, _ = open_blocks(frame.map_partitions(change), None)
    rows = table.rows(encoded, columns=["a"], cell_bytes=8)
    before = rows.total(TASK).steps
    assert np.array_equal(rows.total(TASK).steps, before)  # kept by the workers
    # Workers that lost them make them again.
    rows._ask = table.rows(encoded, columns=["a"], cell_bytes=8)._ask
    with pytest.raises(ArmijoError, match="changed or was counted twice"):
        rows.total(TASK)


@pytest.mark.slow
def test_a_partition_that_is_another_after_its_worker_died_ends_the_run(processes):
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(8.0)}), npartitions=2)
    table, _ = open_blocks(frame.map_partitions(changing), None)
    rows = table.rows(encoded, columns=["a"], cell_bytes=8)
    rows.total(TASK)
    for pid in processes.run(os.getpid).values():
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ArmijoError, match="changed or was counted twice"):
        rows.total(TASK)


def test_partitions_without_rows_add_nothing(client, monkeypatch):
    frame = dd.from_pandas(pd.DataFrame({"a": np.arange(8.0)}), npartitions=4)
    table, _ = open_blocks(frame[frame["a"] > 5], None)
    rows = table.rows(encoded, columns=["a"], cell_bytes=8)
    assert len(rows) == 2
    held = TASK(Rows(np.array([[6.0], [7.0]]), np.ones(2)))
    for most in (10**6, 0):  # a task that goes with the partitions, and before them
        monkeypatch.setattr("armijo.engines.dask._SMALL_TASK", most)
        assert rows.total(TASK).steps.tolist() == held.steps.tolist()
    nobody, _ = open_blocks(frame[frame["a"] > 50], None)
    with pytest.raises(TableError, match="empty table"):
        nobody.rows(encoded, columns=["a"], cell_bytes=8)


def test_a_worker_of_another_kind_is_refused_in_words():
    other = environment()._replace(armijo="9.9", cpu_capability="NONE")
    with pytest.raises(ArmijoError, match=r"tcp://b: Expected armijo .* got 9\.9"):
        refuse_environment(other, "The worker tcp://b")
    slow = environment()._replace(cpu_capability="NONE")
    with pytest.raises(ArmijoError, match="cpu_capability"):
        refuse_environment(slow, "A worker")


def test_a_block_shows_nothing(people):
    from armijo.engines.blocks import code_block

    block = code_block(encoded, 0, people[["age"]], held_rows=10**6)
    assert repr(block) == "Block(private)"
    replace(block.rows).cached_for_run("x", lambda: 1)
    assert block.rows.run_cache and not block.__getstate__()["rows"].run_cache
    assert code_block(lambda frame: 1 / 0, 0, people).reason == (
        "an error of type ZeroDivisionError"
    )


@pytest.mark.parametrize("cell", [None, 0.5, "x"])
def test_a_partition_has_the_types_of_its_table(cell):
    from armijo.engines.dask import _Code

    head = pd.DataFrame({"town": pd.Series([], dtype=np.int64)})
    code = _Code(lambda frame: Taken(frame.to_numpy(), None), head, ("town",), 0)
    ids = [10**16, 10**16 + 2]
    assert not isinstance(code(0, pd.DataFrame({"town": ids}), None), Failure)
    # As floats or objects, the texts of the other cells would not be the same.
    assert isinstance(code(0, pd.DataFrame({"town": [*ids, cell]}), None), Failure)


def test_what_a_worker_returns_shows_nothing_of_its_rows():
    entry = Entry(1234, b"digest", environment())
    shown = repr(Answer(0, entry, None)) + repr(entry)
    assert "1234" not in shown and "digest" not in shown
