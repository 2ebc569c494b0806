# SPDX-License-Identifier: Apache-2.0
"""An interrupted run goes on exactly where it was, and pays for every batch once."""

from pathlib import Path

import pytest

from armijo.errors import ArmijoError, TableError
from armijo.tables import Numeric
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
