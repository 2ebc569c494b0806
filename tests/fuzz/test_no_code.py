# SPDX-License-Identifier: Apache-2.0
"""No file that the package reads can make it run code."""

import ast
import gzip
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from armijo.accounting.ledger import Ledger, read_ledger
from armijo.cli.fit import predict_table
from armijo.errors import ArmijoError
from armijo.estimators.model_file import load_model
from armijo.report.verify import summarize_run
from armijo.tables import load_schema, read_table
from armijo.training.checkpoint import to_bytes
from armijo.training.replay import RunKey
from tests.accounting.ledger_samples import HEADER
from tests.fuzz.run_targets import RUN, position, report
from tests.fuzz.table_targets import CSV, written
from tests.training.files import load_checkpoint, put_together, taken_apart
from tests.training.test_checkpoint import some_state

ROOT = Path(__file__).resolve().parents[2]


class Gadget:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.marker,)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """Return where a payload makes its folder: it must not be there in the end."""
    return tmp_path / "executed"


def pickled(gadget: Gadget) -> bytes:
    return pickle.dumps(gadget)


def torch_zip(gadget: Gadget) -> bytes:
    file = io.BytesIO()
    torch.save({"format": "armijo-training", "run": gadget}, file)
    return file.getvalue()


def torch_legacy(gadget: Gadget) -> bytes:
    file = io.BytesIO()
    document = {"format": "armijo-training", "run": gadget}
    torch.save(document, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def inside_a_checkpoint(gadget: Gadget) -> bytes:
    """Put the payload in the place of a vector of a valid checkpoint."""
    document, vectors = taken_apart(to_bytes(position(), RUN))
    vectors["w"] = torch.tensor(list(pickled(gadget)), dtype=torch.uint8)
    return put_together(document, vectors)


def npz(gadget: Gadget) -> bytes:
    file = io.BytesIO()
    np.savez(file, coef=np.array([gadget], dtype=object))
    return file.getvalue()


def packed_pickle(gadget: Gadget) -> bytes:
    return gzip.compress(pickled(gadget))


def _read_run(folder: Path, content: bytes) -> object:
    (folder / "model.json").write_bytes(content)
    (folder / "t.csv").write_bytes(CSV)
    return predict_table(folder, folder / "t.csv")


def _file_reader(name: str, read: Callable[[Path], object]) -> Any:
    def call(folder: Path, content: bytes) -> object:
        (folder / name).write_bytes(content)
        return read(folder / name)

    return call


READERS: dict[str, Callable[[Path, bytes], object]] = {
    "model": _file_reader("model.json", load_model),
    "model folder": _read_run,
    "schema": _file_reader("s.toml", load_schema),
    "csv": _file_reader("t.csv", read_table),
    "packed csv": _file_reader("t.csv.gz", read_table),
    "parquet": _file_reader("t.parquet", read_table),
    "ledger": _file_reader("l.jsonl", read_ledger),
    "open ledger": _file_reader("l.jsonl", lambda p: Ledger.open(p, header=HEADER)),
    "shown ledger": _file_reader("ledger.jsonl", lambda p: summarize_run(p.parent)),
    "checkpoint": _file_reader(
        "c.json", lambda path: load_checkpoint(path, run=RUN, like=some_state())
    ),
}
PAYLOADS = (pickled, torch_zip, torch_legacy, inside_a_checkpoint, npz, packed_pickle)


@pytest.mark.parametrize("payload", PAYLOADS)
@pytest.mark.parametrize("name", READERS)
def test_a_payload_is_refused_and_not_run(tmp_path, marker, name, payload):
    with pytest.raises(ArmijoError):
        READERS[name](tmp_path, payload(Gadget(marker)))
    assert not marker.exists()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_is_no_key_and_no_report(tmp_path, marker, payload):
    content = payload(Gadget(marker))
    (tmp_path / "run.key").write_bytes(content)
    assert RunKey.load(tmp_path / "run.key") is None
    assert not report(tmp_path, content)
    assert not marker.exists()


def test_the_payloads_do_what_they_are_feared_for(marker):
    def ran() -> bool:
        found = marker.exists()
        if found:
            marker.rmdir()
        return found

    gadget = Gadget(marker)
    pickle.loads(pickled(gadget))
    assert ran()
    pickle.loads(gzip.decompress(packed_pickle(gadget)))
    assert ran()
    np.load(io.BytesIO(npz(gadget)), allow_pickle=True)["coef"]
    assert ran()
    for write in (torch_zip, torch_legacy):
        torch.load(io.BytesIO(write(gadget)), weights_only=False)
        assert ran(), write
    vector = taken_apart(inside_a_checkpoint(gadget))[1]["w"]
    pickle.loads(bytes(vector.tolist()))
    assert ran()


@pytest.mark.parametrize("name", ["arrow.py_extension_type", "pandas.interval", "x"])
def test_the_types_of_a_parquet_file_are_no_code(tmp_path, marker, name):
    notes = {
        "ARROW:extension:name": name,
        "ARROW:extension:metadata": pickled(Gadget(marker)),
    }
    field = pa.field("a", pa.binary(), metadata=notes)
    table = pa.Table.from_arrays(
        [pa.array([b"1"]), pa.array(["u"])],
        schema=pa.schema([field, pa.field("y", pa.string())], metadata=notes),
    )
    path = tmp_path / "t.parquet"
    path.write_bytes(written(table))
    try:
        read_table(path)
    except ArmijoError as error:
        assert str(path) in str(error)
    assert not marker.exists()


def _calls(tree: ast.AST) -> list[str]:
    """Return the calls that load a file in a way that may run it."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        given = {word.arg: ast.unparse(word.value) for word in node.keywords}
        # A safetensors file holds numbers and plain text, nothing that could be run.
        numbers = name == "safetensors.torch.load"
        safe = numbers or given.get("weights_only") == "True"
        if name in ("eval", "exec", "pd.read_pickle", "yaml.load"):
            found.append(name)
        if name == "np.load" and given.get("allow_pickle") != "False":
            found.append(name)
        if name.endswith("torch.load") and not safe:
            found.append(name)
    return found


def _imports(tree: ast.AST) -> set[str]:
    """Return the first part of every imported name."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.name.split(".")[0] for one in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


UNSAFE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}


def test_no_source_imports_or_calls_what_runs_a_file():
    trees = [ast.parse(p.read_text()) for p in (ROOT / "src").rglob("*.py")]
    assert len(trees) > 50
    for tree in trees:
        assert not _imports(tree) & UNSAFE and not _calls(tree)


@pytest.mark.parametrize(
    "line", ["torch.load(p)", "torch.load(p, weights_only=False)", "np.load(p)"]
)
def test_a_planted_call_is_found(line):
    assert _calls(ast.parse(line))
    assert _imports(ast.parse("import pickle as p")) & UNSAFE
