# SPDX-License-Identifier: Apache-2.0
"""Tables of Spark: predictions, executors that are lost, and what workers say."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from armijo import PrivateClassifier, PrivateLogisticRegression
from armijo.data.blocks import SumTask
from armijo.data.query import Rows, Taken
from armijo.engines import open_blocks
from armijo.engines.spark import _last_line
from armijo.errors import ArmijoError, TableError

pytestmark = [
    pytest.mark.filterwarnings("ignore::armijo.errors.ModelWarning"),
    # What Spark itself does with the pandas that is installed.
    pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"),
    pytest.mark.filterwarnings("ignore:The copy keyword:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def as_they_are(rows):
    return rows.X


TASK = SumTask(as_they_are, 1.0, 3.0)


def encoded(frame):
    X = frame.to_numpy(dtype=float)
    return Taken(X, np.ones(len(X)))


def cannot(frame):
    raise ValueError(f"secret {frame.iloc[0, 0]}")


def numbers(session, parts=2, n=8):
    frame = pd.DataFrame({"a": np.arange(n) / 100})
    return session.createDataFrame(frame).repartition(parts)


def rows_of(table, encode=encoded, **given):
    return open_blocks(table, None)[0].rows(
        encode, columns=["a"], cell_bytes=8, **given
    )


def placed(frame):
    return frame.toArrow().to_pandas().sort_values("place")


def test_predictions_stay_beside_their_rows(spark, people):
    rows = people.dropna().rename(columns={"age": "age.x"})
    model = PrivateClassifier(classes=["low", "high"], random_state=7)
    model.fit(rows, "income")
    features = rows[["age.x", "town"]]
    frame = spark.createDataFrame(rows.assign(place=np.arange(len(rows))))
    found = placed(model.predict(frame))
    assert list(found.columns) == [*rows.columns, "place", "prediction"]
    assert found["prediction"].tolist() == model.predict(features).tolist()
    shares = placed(model.predict_proba(frame))["probability"]
    assert np.array_equal(np.stack(shares), model.predict_proba(features))
    with pytest.raises(ValueError, match="'prediction'"):
        model.predict(model.predict(frame))


def test_scores_of_linear_models(spark, people):
    rows = people[["age", "income"]].fillna(0.0)
    model = PrivateLogisticRegression(classes=["low", "high"], random_state=7)
    model.fit(rows, "income")
    frame = spark.createDataFrame(rows.assign(place=np.arange(len(rows))))
    found = placed(model.decision_function(frame))["score"]
    assert np.array_equal(found, model.decision_function(rows[["age"]]))


def test_blocks_of_a_partition_add_up_to_the_sum_in_memory(spark, monkeypatch):
    monkeypatch.setattr("armijo.tables.stream._MOST_ROWS", 3)
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 2)
    try:
        rows = rows_of(numbers(spark, n=20))
        assert len(rows) == 20 and len(rows.parts()) > 2
        held = TASK(Rows(np.arange(20)[:, None] / 100, np.ones(20))).steps
        for _ in range(3):  # also from what workers hold
            assert rows.total(TASK).steps.tolist() == held.tolist()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def test_partitions_without_rows_add_nothing(spark):
    some = numbers(spark, parts=4).filter("a > 0.055")
    assert len(rows_of(some)) == 2
    with pytest.raises(TableError, match="empty table"):
        rows_of(numbers(spark).filter("a > 50"))


def test_partitions_are_coded_once(spark, tmp_path):
    def counted(frame):
        (tmp_path / f"{os.getpid()}-{os.urandom(4).hex()}").touch()
        return encoded(frame)

    rows = rows_of(numbers(spark), counted)
    made = len(list(tmp_path.iterdir()))
    for _ in range(3):
        rows.total(TASK)
    assert made and len(list(tmp_path.iterdir())) == made


def test_workers_do_not_go_through_their_modules_after_each_step(spark):
    rows_of(numbers(spark)).total(TASK)
    found = spark.range(0, 2, 1, 2).mapInArrow(frozen, "frozen long").collect()
    assert max(row[0] for row in found) > 10_000


def frozen(batches):
    import gc

    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})


def test_errors_of_workers_tell_nothing_of_rows(spark, capfd):
    with pytest.raises(TableError, match="an error of type ValueError"):
        rows_of(numbers(spark), cannot)
    rows = rows_of(numbers(spark))
    with pytest.raises(ArmijoError, match="an error of type ValueError"):
        rows.total(SumTask(lambda block: cannot(pd.DataFrame(block.X)), 1.0, 3.0))
    said = capfd.readouterr()
    assert "secret" not in said.out + said.err


def test_a_partition_that_is_another_when_made_again_ends_the_run(spark):
    rows = rows_of(numbers(spark).mapInArrow(another, "a double"))
    before = rows.total(TASK).steps
    assert np.array_equal(rows.total(TASK).steps, before)
    spark.catalog.clearCache()  # as if all executors were lost
    with pytest.raises(ArmijoError, match="changed or was counted twice"):
        rows.total(TASK)


def another(batches):
    import pyarrow as pa

    for batch in batches:
        drawn = np.random.default_rng().uniform(size=batch.num_rows)
        yield pa.RecordBatch.from_arrays([pa.array(drawn)], ["a"])


LOST = """
import os, signal, subprocess, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, pandas as pd
from pyspark.sql import SparkSession
from armijo import PrivateClassifier

def main():
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    builder = builder.config("spark.ui.enabled", "false")
    spark = builder.config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
    spark = spark.getOrCreate()
    people = pd.read_parquet(sys.argv[1])
    killed = []

    def kill(record):
        if record.batch == 3:
            own = "CoarseGrainedExecutorBackend.*" + spark.sparkContext.applicationId
            found = subprocess.run(["pgrep", "-f", own], stdout=-1, check=True)
            killed.append(int(found.stdout.split()[0]))
            os.kill(killed[0], signal.SIGKILL)

    given = dict(classes=["low", "high"], random_state=7)
    model = PrivateClassifier(**given, callback=kill)
    # Files, not a shuffle, whose rows may come in another order when made again.
    model.fit(spark.read.parquet(sys.argv[1]), "income")
    held = PrivateClassifier(**given).fit(people, "income")
    rows = people[["age", "town"]]
    assert killed
    assert np.array_equal(model.decision_function(rows), held.decision_function(rows))
    print("the same")

if __name__ == "__main__":
    main()
"""


def run_script(text, folder, *given, **environment):
    script = Path(folder) / "script.py"
    script.write_text(text)
    place = Path(__file__).parents[2]
    path = os.pathsep.join(filter(None, [str(place), *sys.path]))
    return subprocess.run(
        [sys.executable, script, *given],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=900,
    )


def said(found):
    """Return the errors of Python among the lines of Spark."""
    lines = found.stderr.splitlines()
    return found.stdout + "\n".join(line for line in lines if "Error" in line[:60])


@pytest.mark.slow
def test_an_executor_that_is_lost_in_the_middle_changes_nothing(
    spark_needs, people, tmp_path
):
    for part in range(4):
        (tmp_path / "people").mkdir(exist_ok=True)
        people[part::4].to_parquet(tmp_path / "people" / f"{part}.parquet", index=False)
    found = run_script(LOST, tmp_path, tmp_path / "people")
    assert found.returncode == 0 and "the same" in found.stdout, said(found)


OTHER = """
import os, sys, warnings
warnings.simplefilter("ignore")
import pandas as pd
from pyspark.sql import SparkSession
from armijo import PrivateClassifier
from armijo.errors import ArmijoError

def main():
    builder = SparkSession.builder.master("local[2]")
    name, value = sys.argv[1:]
    builder = builder.config("spark.executorEnv." + name, value)
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    table = spark.createDataFrame(pd.DataFrame({"a": [1.0, 2.0], "y": ["n", "p"]}))
    try:
        PrivateClassifier(classes=["n", "p"], ledger="ledger").fit(table, "y")
    except ArmijoError as error:
        print(error)
    assert not os.path.exists("ledger")

if __name__ == "__main__":
    main()
"""


@pytest.mark.slow
def test_a_worker_of_another_kind_is_refused(spark_needs, tmp_path):
    found = run_script(OTHER, tmp_path, "ATEN_CPU_CAPABILITY", "default")
    assert "cpu_capability" in found.stdout, said(found)
    assert "Nothing was spent" in found.stdout


def test_what_java_says_is_told_without_its_places():
    told = """An error occurred while calling None.None.
: org.apache.spark.SparkException: the master is gone
\tat org.apache.spark.Some.thing(Some.scala:1)
\t... 7 more
"""
    found = _last_line(RuntimeError(told))
    assert found == (
        "RuntimeError: 'org.apache.spark.SparkException: the master is gone'."
    )


@pytest.mark.slow
def test_a_master_that_nobody_answers_for_is_named(spark_needs, files, tmp_path):
    found = run_script(NOBODY, tmp_path, files)
    assert "Spark at 'spark://127.0.0.1:9'" in found.stdout, said(found)
    assert "Nothing was spent" in found.stdout and not (tmp_path / "run").exists()


NOBODY = """
import sys, warnings
warnings.simplefilter("ignore")
from armijo.cli.fit import fit_table
from armijo.errors import ArmijoError

folder, out = sys.argv[1], sys.path[0] + "/run"
given = {"parameters": {"epsilon": 1.0, "delta": 1e-5}, "out": out}
given |= {"engine": "spark", "scheduler": "spark://127.0.0.1:9"}
try:
    fit_table(folder + "/data", schema=folder + "/schema.toml", **given)
except ArmijoError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_ends_a_step_in_words_or_is_replaced(spark):
    """In local mode Spark does not try again; a worker between steps is replaced."""
    rows = rows_of(numbers(spark))
    held = rows.total(TASK).steps

    def killing(block):
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(ArmijoError, match="workers of Spark that answer"):
        rows.total(SumTask(killing, 1.0, 3.0))
    assert np.array_equal(rows.total(TASK).steps, held)
