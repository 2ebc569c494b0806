# SPDX-License-Identifier: Apache-2.0
"""An interrupted run goes on exactly where it was, and pays for every batch once."""

from pathlib import Path

import pandas as pd
import pytest

from armijo.accounting.ledger import read_ledger
from armijo.errors import ArmijoError, RechargeWarning, TableError
from armijo.methods import BLSGD
from armijo.tables import Numeric
from armijo.training.checkpoint import read_released
from tests.cli.small import (
    FILES,
    SEED,
    charges,
    content,
    own_files,
    released,
    same_run,
    small_schema,
    stop_after,
    within_limits,
)


def test_a_seeded_run_that_was_interrupted_ends_where_it_would_have(
    small, seeded, tmp_path
):
    count = 4
    given = {"parameters": {"random_state": SEED}}
    first = small.fit(tmp_path / "run", callback=stop_after(count), **given)
    assert not first.finished and first.estimator.n_iter_ == count
    unfinished = {
        "ledger.jsonl",
        "checkpoint.safetensors",
        "checkpoint.safetensors.key",
    }
    assert own_files(tmp_path / "run") == unfinished
    assert len(charges(tmp_path / "run")) == count
    again = small.fit(tmp_path / "run", resume=True, **given)
    assert again.finished and own_files(tmp_path / "run") == FILES
    same_run(again, seeded)
    assert released(tmp_path / "run" / "report.json") == released(
        seeded.folder / "report.json"
    )


def test_a_run_interrupted_after_every_batch_is_the_same_run(small, seeded, tmp_path):
    given = {"parameters": {"random_state": SEED}, "callback": lambda record: True}
    found = small.fit(tmp_path / "run", **given)
    calls = 1
    while not found.finished:
        found = small.fit(tmp_path / "run", resume=True, **given)
        calls += 1
    assert calls == seeded.estimator.n_iter_ + 1
    same_run(found, seeded)


def test_a_run_from_the_systems_randomness_goes_on_with_its_ledger(small, tmp_path):
    out = tmp_path / "run"
    first = small.fit(out, callback=stop_after(3))
    before = (out / "ledger.jsonl").read_bytes()
    again = small.fit(out, resume=True)
    assert (out / "ledger.jsonl").read_bytes().startswith(before)
    history = again.estimator.history_
    pd.testing.assert_frame_equal(history.head(3), first.estimator.history_)
    assert history["batch"].tolist() == list(range(len(history)))
    assert history["epsilon"].is_monotonic_increasing
    view = read_ledger(out / "ledger.jsonl")
    assert len(view.charges) == len(history) > 3
    assert again.estimator.privacy_.epsilon_spent <= 1.0
    assert within_limits(view)


def interrupted_in_a_step(small, out, monkeypatch) -> None:
    """Run until the fourth batch is paid for and broken off before its answer."""
    whole, calls = BLSGD.step, []

    def step(self, *given):
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return whole(self, *given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(BLSGD, "step", step)
        small.fit(out)


def test_a_batch_paid_and_not_finished_is_redone_and_not_paid_again(
    small, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    interrupted_in_a_step(small, out, monkeypatch)
    assert len(charges(out)) == 4
    assert read_released(out / "checkpoint.safetensors").charges == 3
    found = small.fit(out, resume=True)
    view = read_ledger(out / "ledger.jsonl")
    assert found.estimator.history_["batch"].tolist() == list(range(len(view.charges)))
    assert own_files(out) == FILES
    assert within_limits(view)


def test_a_batch_whose_key_is_gone_is_paid_again(small, tmp_path, monkeypatch):
    out = tmp_path / "run"
    interrupted_in_a_step(small, out, monkeypatch)
    (out / "checkpoint.safetensors.key").unlink()
    with pytest.warns(RechargeWarning, match=r"\(1\) are lost.*missing or damaged"):
        found = small.fit(out, resume=True)
    view = read_ledger(out / "ledger.jsonl")
    batches = found.estimator.history_["batch"].tolist()
    assert batches == [k for k in range(len(view.charges)) if k != 3]
    assert own_files(out) == FILES
    assert within_limits(view)


def test_other_rows_are_paid_again(small, tmp_path, monkeypatch):
    """The same noise on other rows would tell the two apart."""
    out = tmp_path / "run"
    interrupted_in_a_step(small, out, monkeypatch)
    table = pd.read_csv(small.csv).drop(index=0)
    table.to_csv(tmp_path / "other.csv", index=False)
    with pytest.warns(RechargeWarning, match="changed since then: the rows"):
        found = small.fit(out, table=tmp_path / "other.csv", resume=True)
    assert 3 not in found.estimator.history_["batch"].tolist()


def test_a_failing_callback_loses_nothing(small, tmp_path):
    def callback(record):
        if record.batch == 2:
            raise RuntimeError("the terminal went away")

    with pytest.raises(RuntimeError, match="terminal"):
        small.fit(tmp_path / "run", callback=callback)
    found = small.fit(tmp_path / "run", resume=True)
    assert found.estimator.n_iter_ == len(charges(tmp_path / "run")) > 3


def wider_schema(folder: Path) -> Path:
    columns = list(small_schema().columns)
    columns[0] = Numeric("age", 0, 120)
    path = folder / "wider.toml"
    path.write_text(small_schema(columns=tuple(columns)).to_toml())
    return path


def test_a_run_goes_on_with_its_own_settings_only(small, tmp_path):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(2))
    before = content(out)
    values = {"epsilon": 2.0, "sampling_prob": 0.2, "random_state": 1}
    others = [{"parameters": {name: value}} for name, value in values.items()]
    for other in (*others, {"kind": "svm"}, {"schema": wider_schema(tmp_path)}):
        with pytest.raises(ArmijoError, match=r"another run.*nothing was spent"):
            small.fit(out, resume=True, **other)
        assert content(out) == before


def test_what_is_not_interrupted_cannot_be_resumed(small, finished, tmp_path):
    before = content(finished.folder)
    with pytest.raises(TableError, match=r"resume.*a finished run.*without --resume"):
        small.fit(finished.folder, resume=True)
    assert content(finished.folder) == before
    with pytest.raises(TableError, match=r"resume.*no run.*without --resume"):
        small.fit(tmp_path / "none", resume=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ledger", ["missing", "older", "changed"])
def test_a_run_does_not_go_on_without_the_ledger_of_its_batches(
    small, tmp_path, ledger
):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(1))
    older = (out / "ledger.jsonl").read_bytes()
    small.fit(out, callback=stop_after(3), resume=True)
    lines = (out / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (out / "ledger.jsonl").unlink()
    found = {"older": older, "changed": b"".join([*lines[:2], *lines[3:]])}
    if ledger in found:
        (out / "ledger.jsonl").write_bytes(found[ledger])
    with pytest.raises(ArmijoError, match="ledger"):
        small.fit(out, resume=True)


def test_a_damaged_checkpoint_is_refused_and_left_as_it_is(small, tmp_path):
    out = tmp_path / "run"
    small.fit(out, callback=stop_after(3))
    damaged = (out / "checkpoint.safetensors").read_bytes()[:-9]
    (out / "checkpoint.safetensors").write_bytes(damaged)
    before = content(out)
    with pytest.raises(ArmijoError, match=r"not a checkpoint.*nothing was spent"):
        small.fit(out, resume=True)
    assert content(out) == before
