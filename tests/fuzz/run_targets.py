# SPDX-License-Identifier: Apache-2.0
"""What a run leaves and reads again: ledger, key, checkpoints, report."""

import json
import tempfile
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from hypothesis import strategies as st

from armijo.accounting.ledger import Ledger, read_ledger, seal
from armijo.errors import ArmijoError, LedgerError
from armijo.methods.base import StepRecord
from armijo.report.verify import summarize_run
from armijo.training.checkpoint import Checkpoint, save_checkpoint
from armijo.training.replay import RunKey
from tests.accounting.ledger_samples import HEADER, sample, torn_sample
from tests.fuzz.mutations import odd_json
from tests.fuzz.table_targets import MODEL
from tests.fuzz.target import Target
from tests.training.files import DOCUMENT, load_checkpoint, put_together, taken_apart
from tests.training.test_checkpoint import some_state

RUN = {"epsilon": 1.0, "columns": ["a", "b"]}
RECORD = StepRecord(update=1, batch=2, step_size=0.5, direction_norm=3.0, epsilon=0.2)
FACTS = {"the rows": "rows"}


def _file(write: Any) -> bytes:
    """Return what a function writes to the path that it is given."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def ledger(folder: Path, content: bytes) -> bool:
    """Read and open a ledger; opening may cut off a torn line, a refusal nothing."""
    path = folder / "run.ledger"
    path.write_bytes(content)
    try:
        view = read_ledger(path)
        with Ledger.open(path, header=HEADER) as opened:
            assert tuple(opened.charges) == view.charges
            assert opened.spent == view.spent
    except LedgerError as error:
        assert str(path) in str(error)
        assert path.read_bytes() == content
        return False
    whole = content[: content.rfind(b"\n") + 1] if view.torn else content
    assert path.read_bytes() == (whole if whole.endswith(b"\n") else whole + b"\n")
    assert read_ledger(path) == replace(view, torn=False)
    return True


def sealed_ledger(folder: Path, content: bytes) -> bool:
    """Seal every line before it is read, so that what it says has to be judged."""
    chain, lines = b"", []
    for payload in content.split(b"\n"):
        line, chain = seal(chain, payload)
        lines.append(line + b"\n")
    return ledger(folder, b"".join(lines))


def _payloads() -> tuple[bytes, ...]:
    """Return the sample ledgers without their checksums."""
    found = []
    for write in (sample, torn_sample):
        records = []
        for line in _file(write).splitlines():
            with_chain = line.rpartition(b',"chain":')
            records.append(with_chain[0] + b"}" if with_chain[1] else line)
        found.append(b"\n".join(records))
    return tuple(found)


@st.composite
def _odd_lines(draw: Any, originals: tuple[bytes, ...]) -> bytes:
    """Return lines of a ledger, one of which holds any value in any place."""
    lines = draw(st.sampled_from(originals)).split(b"\n")
    at = draw(st.integers(0, len(lines) - 1))
    try:
        lines[at] = draw(odd_json((lines[at],)))
    except ValueError:
        lines[at] = draw(st.binary())
    return b"\n".join(lines)


def run_key(folder: Path, content: bytes) -> bool:
    """Read a key: a damaged one is none."""
    path = folder / "run.key"
    path.write_bytes(content)
    found = RunKey.load(path)
    if found is None:
        return False
    assert len(found.name) == 16
    assert all(isinstance(name, str) for name in found.changed(FACTS))
    return True


def _key() -> bytes:
    """Return a key with results."""

    def write(path: Path) -> None:
        key = RunKey.create(path, FACTS)
        for charge in range(3):
            key.commit(charge, None)

    return _file(write)


def checkpoint(folder: Path, content: bytes) -> bool:
    """Read a checkpoint; what is accepted can be gone on with and written again."""
    path = folder / "run.json"
    path.write_bytes(content)
    try:
        found = load_checkpoint(path, run=RUN, like=some_state())
    except ArmijoError as error:
        assert str(path) in str(error) and "nothing was spent" in str(error)
        assert path.read_bytes() == content
        return False
    _check_position(found)
    save_checkpoint(path, run=RUN, checkpoint=found)
    assert load_checkpoint(path, run=RUN, like=some_state())[1:] == found[1:]
    return True


def _check_position(found: Checkpoint) -> None:
    """Check that records hold numbers."""
    for record in found.records:
        values = asdict(record).values()
        assert all(one is None or type(one) in (int, float) for one in values)
    assert found.charges >= 0


TENSORS = st.sampled_from(
    [
        torch.zeros(3),
        torch.zeros(2),
        torch.full((2,), torch.nan, dtype=torch.float64),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, dtype=torch.bool),
        torch.zeros((2, 0)),
        torch.zeros((2, 1), dtype=torch.float64),
        torch.zeros((), dtype=torch.float64),
    ]
)


def position() -> Checkpoint:
    seen = [(1, 0.5), (2, 0.25)]
    return Checkpoint(some_state(), [RECORD, RECORD], 3, "ab", "cd", seen)


@cache
def _checkpoint() -> bytes:
    return _file(lambda path: save_checkpoint(path, run=RUN, checkpoint=position()))


@st.composite
def _odd_checkpoint(draw: Any) -> bytes:
    """Return a checkpoint with any value in any place of its document or vectors."""
    document, vectors = taken_apart(_checkpoint())
    if draw(st.booleans()):
        content = draw(odd_json((json.dumps(document).encode(),)))
        text = torch.tensor(list(content), dtype=torch.uint8)
        return safetensors.torch.save({**vectors, DOCUMENT: text})
    for _ in range(draw(st.integers(1, 2))):
        vectors[draw(st.sampled_from([*sorted(vectors), "odd"]))] = draw(
            TENSORS
        ).clone()
    return put_together(document, vectors)


def report(folder: Path, content: bytes) -> bool:
    """Show a run whose report is damaged."""
    if not (folder / "ledger.jsonl").exists():
        sample(folder / "ledger.jsonl")
        (folder / "model.json").write_bytes(MODEL)
    path = folder / "report.json"
    path.write_bytes(content)
    try:
        found = summarize_run(folder)
    except ArmijoError as error:
        assert str(path) in str(error)
        return False
    assert type(found["batches"]) is int
    return True


def _targets() -> dict[str, Target]:
    ledgers = tuple(map(_file, (sample, torn_sample)))
    payloads, key, state = _payloads(), (_key(),), (_checkpoint(),)
    reports = (b'{"history": [{"batch": 0}], "privacy": {"epsilon": 1.0}}',)
    return {
        "ledger": Target(run=ledger, seeds=ledgers, many=3000),
        "sealed ledger": Target(
            run=sealed_ledger,
            seeds=payloads[:1],
            built=_odd_lines(payloads),
            guided=10_000,
        ),
        "run key": Target(run=run_key, seeds=key, many=2000),
        "checkpoint": Target(
            run=checkpoint, seeds=state, built=_odd_checkpoint(), many=8000, guided=3000
        ),
        "report": Target(
            run=report,
            seeds=reports,
            built=odd_json(reports),
            many=1000,
            guided=2000,
        ),
    }


RUN_TARGETS = _targets()
