# SPDX-License-Identifier: Apache-2.0
"""Clusters of this machine, each started once and only if a test asks for it."""

import os
import shutil
import sys
import warnings
from importlib.util import find_spec

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

N = 240
SCHEMA = """
version = 2
reviewed = true
target = "income"

[[columns]]
name = "age"
kind = "numeric"
low = 0
high = 100

[[columns]]
name = "town"
kind = "categorical"
categories = ["a", "b"]

[[columns]]
name = "income"
kind = "label"
classes = ["low", "high"]
"""


@pytest.fixture(scope="session")
def people():
    rng = np.random.default_rng(0)
    age = rng.integers(18, 90, N).astype(float)
    age[3] = np.nan
    town = pd.array(rng.choice(["a", "b", "c"], N), "str")
    income = np.where(age + rng.normal(0, 10, N) > 50, "high", "low")
    return pd.DataFrame({"age": age, "town": town, "income": income.astype(object)})


@pytest.fixture(scope="session")
def files(people, tmp_path_factory):
    """A folder with Parquet files of several row groups, and a schema beside it."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "data").mkdir()
    (folder / "schema.toml").write_text(SCHEMA)
    table = pa.Table.from_pandas(people, preserve_index=False)
    for part in range(3):
        piece = table.slice(part * N // 3, N // 3)
        pq.write_table(piece, folder / "data" / f"{part}.parquet", row_group_size=50)
    return folder


def dask_client(**options):
    distributed = pytest.importorskip("distributed", reason="needs armijo[dask]")
    pytest.importorskip("dask.dataframe", reason="needs armijo[dask]")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=":0", **options
    )
    return cluster, distributed.Client(cluster, set_as_default=False)


@pytest.fixture(scope="session")
def _threads():
    cluster, client = dask_client(processes=False)
    with cluster, client:
        yield client


@pytest.fixture
def client(_threads):
    """Two workers of Dask in this process: at once there, and cannot be killed."""
    with _threads.as_current():
        yield _threads


@pytest.fixture(scope="session")
def _processes():
    cluster, client = dask_client(processes=True)
    with cluster, client:
        yield client


@pytest.fixture
def processes(_processes):
    """Two workers of Dask that are processes."""
    with _processes.as_current():
        yield _processes


@pytest.fixture(scope="session")
def spark_needs():
    """Skip where Spark cannot run, saying what is missing."""
    missing = [] if find_spec("pyspark") else ["the extra armijo[spark]"]
    missing += [] if shutil.which("java") else ["Java"]
    if missing:
        pytest.skip(f"needs {' and '.join(missing)}: make test-engines")
    os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark(spark_needs):
    """A session of Spark with two workers."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("armijo-tests")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = builder.config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()
