# SPDX-License-Identifier: Apache-2.0
"""What fuzzing found, one small input each, so that it stays found."""

import gzip
import json
import resource
import signal

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch

from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    best_order,
    best_share,
    noise_multiplier_for,
    order_grid,
)
from armijo.accounting.mechanisms import Gaussian, Subsampled
from armijo.errors import ArmijoError, TableError
from armijo.report.page import plain_sentence
from armijo.tables import read_table
from armijo.training.replay import RunKey
from tests.cli.conftest import (  # noqa: F401 (fixtures)
    armijo,
    seeded,
    small,
    trained,
)
from tests.fuzz.limits import bounded_memory
from tests.fuzz.run_targets import RUN, RUN_TARGETS, report
from tests.fuzz.table_targets import written
from tests.training.files import DOCUMENT, load_checkpoint, put_together, taken_apart
from tests.training.test_checkpoint import some_state

DEEP = b"[" * 100_000


class TestTables:
    @pytest.mark.parametrize(
        "column",
        [
            pa.array([0], pa.timestamp("us", "Nowhere/Land")),
            pa.array([0], pa.timestamp("ms", "+99:99")),
        ],
    )
    def test_a_time_of_no_zone(self, tmp_path, column):
        path = tmp_path / "t.parquet"
        path.write_bytes(written(pa.table({"a": column})))
        with pytest.raises(TableError, match=r"t\.parquet: Expected columns of"):
            read_table(path)

    def test_a_packed_file_that_unpacks_to_more_than_the_memory(self, tmp_path):
        path = tmp_path / "t.csv.gz"
        path.write_bytes(gzip.compress(bytes(1 << 24)) * 40)
        with (
            bounded_memory(room=1 << 28),
            pytest.raises(TableError, match=r"t\.csv\.gz: .* fits into memory"),
        ):
            read_table(path)


@pytest.mark.parametrize("command", ["schema", "predict"])
def test_what_a_full_disk_cuts_is_not_left(
    armijo,  # noqa: F811
    small,  # noqa: F811
    trained,  # noqa: F811
    tmp_path,
    command,
):
    out = tmp_path / "out"
    given = {"schema": [small.csv], "predict": [trained, small.csv]}[command]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        found = armijo(command, *given, "--out", out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert found.code == 2 and "File too large" in found.err
    assert list(tmp_path.iterdir()) == []
    assert armijo(command, *given, "--out", out).code == 0 and out.stat().st_size > 100


def test_an_option_that_is_a_deep_nest(armijo, small, tmp_path):  # noqa: F811
    files = ["--schema", small.schema, "--out", tmp_path / "run"]
    budget = ["--epsilon", 1, "--delta", 1e-5, "--option", "steps=" + "[" * 2000]
    sgd = ["--model", "logistic", "--method", "sgd"]
    found = armijo("fit", small.csv, *sgd, *files, *budget)
    assert found.code == 2 and "steps" in found.err
    assert not (tmp_path / "run").exists()


class TestCheckpoints:
    """A checkpoint was taken, or ended in a traceback, that could not be gone on."""

    def changed(self, tmp_path, change):
        document, vectors = taken_apart(RUN_TARGETS["checkpoint"].seeds[0])
        change(document)
        path = tmp_path / "run.json"
        path.write_bytes(put_together(document, vectors))
        return path

    def test_the_unchanged_file_is_taken(self, tmp_path):
        path = self.changed(tmp_path, lambda document: None)
        assert load_checkpoint(path, run=RUN, like=some_state()).charges == 3

    @pytest.mark.parametrize(
        "change",
        [
            lambda d: d["records"][0].update(epsilon="much"),
            lambda d: d["records"][0].update(step_size=float("nan")),
            lambda d: d["records"][0].update(batch=True),
            lambda d: d.update(charges=-1),
            lambda d: d.update(charges=2.5),
            lambda d: d.update(ledger=["name"]),
            lambda d: d.update(tag=None),
            lambda d: d.update(charges=float("inf")),
            lambda d: d.update(evaluations=[(float("inf"), 1.0)]),
            lambda d: d["state"].update(w={"tensor": [None, 1.0]}),
            lambda d: d["state"].update(w=[0.0, 1.0]),
            lambda d: d["run"].update(epsilon=float("inf")),
        ],
    )
    def test_values_of_another_type(self, tmp_path, change):
        path = self.changed(tmp_path, change)
        with pytest.raises(ArmijoError, match=r"not a checkpoint.*nothing was spent"):
            load_checkpoint(path, run=RUN, like=some_state())

    @pytest.mark.parametrize("wrapped", [True, False])
    def test_a_deep_nest(self, tmp_path, wrapped):
        text = torch.tensor(list(DEEP), dtype=torch.uint8)
        content = safetensors.torch.save({DOCUMENT: text}) if wrapped else DEEP
        (tmp_path / "run.json").write_bytes(content)
        with pytest.raises(ArmijoError, match="not a checkpoint"):
            load_checkpoint(tmp_path / "run.json", run=RUN, like=some_state())

    def test_a_vector_longer_than_its_file(self, tmp_path):
        whole = RUN_TARGETS["checkpoint"].seeds[0]
        path = tmp_path / "run.json"
        assert b'"shape":[2]' in whole
        path.write_bytes(whole.replace(b'"shape":[2]', b'"shape":[9]', 1))
        with pytest.raises(ArmijoError, match="not a checkpoint"):
            load_checkpoint(path, run=RUN, like=some_state())


class TestRunFiles:
    @pytest.mark.parametrize("content", [DEEP, b"[]", b"7", b'{"history": 3}', b"\xff"])
    def test_a_damaged_report(self, tmp_path, content):
        assert not report(tmp_path, content)

    @pytest.mark.parametrize("made_for", [[["a", "b"]], "ab", None, 5])
    def test_a_key_made_for_nothing(self, tmp_path, made_for):
        head, _, rest = RUN_TARGETS["run key"].seeds[0].partition(b"\n")
        document = {**json.loads(head), "made_for": made_for}
        path = tmp_path / "run.key"
        path.write_bytes(json.dumps(document).encode() + b"\n" + rest)
        assert RunKey.load(path) is None

    def test_a_key_that_is_a_deep_nest(self, tmp_path):
        (tmp_path / "run.key").write_bytes(DEEP)
        assert RunKey.load(tmp_path / "run.key") is None


class TestNumbers:
    @pytest.mark.parametrize("epsilon", [1e-9, 1e-12, 1e-38, 5e-324])
    def test_the_order_of_a_tiny_epsilon_is_found(self, epsilon):
        budget = Budget(epsilon=epsilon, delta=1e-38)
        assert 2 <= best_order(budget) <= 2**40
        assert order_grid(budget).min() == 2

    def test_a_budget_that_no_noise_reaches_is_refused(self):
        budget = Budget(epsilon=1e-38, delta=1e-38)
        with pytest.raises(ValueError, match="No noise reaches"):
            noise_multiplier_for(
                budget, sampling_prob=0.1, steps=10, accountant="adaptive"
            )

    def test_orders_that_take_too_much_memory_are_not_used(self):
        step = Subsampled(Gaussian.from_rho(1e-3), 0.1)
        costs = step.rdp(np.array([2.0, 2.0**40]))
        assert costs[0] == step.rdp(np.array([2.0]))[0] and costs[1] == np.inf

    def test_a_share_beyond_all_numbers_is_no_warning(self):
        share, _ = best_share(Budget(epsilon=1.0, delta=1e-5), Gaussian.from_rho(1e305))
        assert share > 1e300

    def test_an_enormous_epsilon_is_told(self):
        told = plain_sentence(
            {"guarantee": True, "relation": "add-remove", "epsilon": 1e4, "delta": 0.1}
        )
        assert "a factor of inf (epsilon 10000)" in told


def test_an_interrupted_command_says_so(armijo, monkeypatch):  # noqa: F811
    def interrupted(*given, **named):
        raise KeyboardInterrupt

    monkeypatch.setattr("armijo.registry.describe_methods", interrupted)
    found = armijo("methods")
    assert found.code == 130 and "goes on with --resume" in found.err
