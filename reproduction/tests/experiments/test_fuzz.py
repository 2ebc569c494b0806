# SPDX-License-Identifier: Apache-2.0
"""Whatever a result file holds: its rows or a refusal, and never a traceback."""

import os
import tempfile
from functools import cache, partial
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from armijo.errors import ArmijoError
from armijo_reproduction.results import BUILDS, COLUMNS, CONVEX, KEY, Results
from armijo_reproduction.spec import Experiment, experiment
from tests.fuzz.limits import bounded_memory
from tests.fuzz.mutations import odd_json
from tests.fuzz.target import Target, fuzzed
from tests.fuzz.test_no_code import PAYLOADS, Gadget

DEEP = b"[" * 100_000
EXPERIMENTS = {"convex": "logistic-adult", "networks": "mnist-cnn"}


@cache
def _wanted(kind: str) -> Experiment:
    return experiment(EXPERIMENTS[kind], fast=True)


def _rows(wanted: Experiment) -> list[dict[str, float]]:
    """Return the rows of one run; a curve has two and ends at the last step."""
    values = COLUMNS[wanted.kind][len(KEY) : -1]
    last = dict.fromkeys(values, 0.5) | {"iteration": wanted.steps}
    first = dict.fromkeys(values, 0.25) | {"iteration": wanted.evaluate_every}
    if wanted.kind == "networks":
        return [first, last]
    return [{name: last[name] for name in values}]


def results(folder: Path, content: bytes, *, kind: str = "convex") -> bool:
    """Read a file, drop what is cut short, add a row: whole runs stay, or a refusal."""
    wanted = _wanted(kind)
    found = Results(folder, wanted, fast=True)
    found.path.write_bytes(content)
    try:
        table = found.table()
        found.drop_partial()
    except ArmijoError as error:
        assert str(found.path) in str(error)
        assert found.path.read_bytes() == content
        return False
    assert found.table().equals(table)
    found.append(next(wanted.run_keys()), _rows(wanted))
    assert len(found.table()) == len(table) + len(_rows(wanted))
    return True


def _results(kind: str) -> bytes:
    """Return the result file of three runs."""
    wanted = _wanted(kind)

    with tempfile.TemporaryDirectory() as folder:
        found = Results(Path(folder), wanted)
        for key in islice(wanted.run_keys(), 3):
            found.append(key, _rows(wanted))
        return found.path.read_bytes()


def builds(folder: Path, content: bytes) -> bool:
    """Note a build in a file of builds."""
    path = folder / BUILDS
    path.write_bytes(content)
    found = Results(folder, _wanted("convex"))
    try:
        found.note_build()
    except ArmijoError as error:
        assert str(path) in str(error) and path.read_bytes() == content
        return False
    return True


SEED = (b'{"0123abcd": {"armijo": "0.1.0", "python": "3.11"}}\n',)
FILE = _results("convex")
TARGETS = {
    "convex results": Target(run=results, seeds=(FILE,), few=60, many=1500),
    "network results": Target(
        run=partial(results, kind="networks"),
        seeds=(_results("networks"),),
        few=60,
        many=1500,
    ),
    "builds": Target(run=builds, seeds=SEED, built=odd_json(SEED), few=60, many=1000),
}
KNOWN = {"builds": (DEEP, b"[]", b'""')}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Leave syncing out where thousands of files are written."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_accepted(tmp_path, name):
    with bounded_memory():
        for seed in TARGETS[name].seeds:
            assert TARGETS[name].survive(tmp_path, seed), seed


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_inputs(tmp_path_factory, name):
    target, folder = TARGETS[name], tmp_path_factory.mktemp("fuzz")
    known = KNOWN.get(name, ())
    assert fuzzed(target, folder, target.many, known) >= target.many


@pytest.mark.parametrize("content", [DEEP, b"[]", b"7", b'""', b"\xff", b"{"])
def test_damaged_builds(tmp_path, content):
    assert not builds(tmp_path, content)
    assert (tmp_path / BUILDS).read_bytes() == content


def test_numbers_come_back_exactly(tmp_path):
    wanted = experiment("logistic-adult", fast=True)
    found = Results(tmp_path, wanted)
    values = np.random.default_rng(1).random(20) * 1e-7
    key = next(wanted.run_keys())
    names = [name for name in CONVEX if name != "build"]
    found.append(key, [dict.fromkeys(names, float(value)) for value in values])
    assert found.table()["accuracy"].tolist() == values.tolist()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b",0,0,", b",0.5,0,"),
        (b",0,0,", b",inf,0,"),
        (b",0,0,", b"," + b"9" * 30 + b",0,"),
        (b"\nadult", b'\n"adult'),
        (b"\nadult", b"\nadult,adult"),
    ],
)
def test_rows_that_are_none(tmp_path, old, new):
    assert old in FILE
    assert not results(tmp_path, FILE.replace(old, new))


@pytest.mark.parametrize("payload", PAYLOADS)
def test_a_payload_is_not_run(tmp_path, payload):
    marker = tmp_path / "marker"
    results(tmp_path, payload(Gadget(marker)))
    assert not marker.exists()
