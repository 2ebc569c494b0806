# SPDX-License-Identifier: Apache-2.0
"""The ledger in daily use: exact, durable, hard to misuse."""

import copy
import errno
import math
import os
import pickle
import stat
import tempfile
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.accounting.ledger import Charge, Ledger, MemoryLedger, read_ledger
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import COSTS, HEADER, charge, extend, sample

COST = st.floats(0.0, 1e300, allow_subnormal=True)


def test_what_was_written_is_read_back_exactly(path):
    cost = (0.1 + 0.2, 5e-324, 1.7976931348623157e308, 1 / 3, 0.0)
    mechanism = MappingProxyType({"name": "Größe \n\"'", "inner": {"x": [1, None]}})
    charges = [
        Charge(0, "line\nbreak \ud800 ü", mechanism, cost),
        Charge(1, "", {}, cost[::-1]),
    ]
    with Ledger.open(path, header=HEADER) as ledger:
        for one in charges:
            ledger.append(one)
        assert list(ledger.charges) == charges
    view = read_ledger(path)
    assert list(view.charges) == charges
    with Ledger.open(path, header=HEADER) as ledger:
        assert list(ledger.charges) == charges
        assert ledger.next_index == 2
        assert ledger.header == view.header
    assert view.header["format"] == "armijo-ledger"
    assert view.header["version"] == 3
    assert view.header["budget"] == HEADER["budget"]
    assert len(str(view.header["run"])) == 32
    assert not view.torn


def test_a_new_ledger_is_private_and_alone(path):
    extend(path, COSTS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(path.parent)) == ["run.ledger", "run.ledger.lock"]


def test_two_runs_have_different_names(path):
    extend(path, [])
    extend(path.with_name("other"), [])
    runs = {read_ledger(p).header["run"] for p in (path, path.with_name("other"))}
    assert len(runs) == 2


def test_every_write_is_synced_before_append_returns(path, monkeypatch):
    events: list[str] = []
    write, fsync = os.write, os.fsync
    with Ledger.open(path, header=HEADER) as ledger, monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda f, d: events.append("write") or write(f, d))
        patch.setattr(os, "fsync", lambda f: events.append("sync") or fsync(f))
        for index in range(3):
            events.clear()
            ledger.append(charge(index, (0.1 * index, 0.1)))
            assert events == ["write", "sync"]


def test_what_opening_counts_is_synced_first_with_its_folder(path, monkeypatch):
    synced: list[int] = []
    fsync = os.fsync
    for _ in range(2):  # begun, then reopened
        with monkeypatch.context() as patch:
            patch.setattr(
                os, "fsync", lambda f: synced.append(os.fstat(f).st_ino) or fsync(f)
            )
            Ledger.open(path, header=HEADER).close()
        assert synced[-2:] == [path.stat().st_ino, path.parent.stat().st_ino]
        synced.clear()


@settings(max_examples=60)
@given(st.data())
def test_an_interrupted_run_adds_up_like_an_uninterrupted_one(data):
    width = data.draw(st.integers(1, 3))
    costs = data.draw(st.lists(st.tuples(*[COST] * width), max_size=12))
    stops = data.draw(st.sets(st.integers(0, len(costs))))
    memory = MemoryLedger()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        path = Path(folder) / "ledger"
        ledger = Ledger.open(path, header=HEADER)
        for index, cost in enumerate(costs):
            if index in stops:
                ledger.close()
                if index and data.draw(st.booleans()):  # killed before the newline
                    path.write_bytes(path.read_bytes()[:-1])
                ledger = Ledger.open(path, header=HEADER)
            ledger.append(charge(index, cost))
            memory.append(charge(index, cost))
        ledger.close()
        assert ledger.spent == memory.spent == read_ledger(path).spent
        assert ledger.charges == memory.charges == read_ledger(path).charges
        assert not read_ledger(path).torn
    assert memory.spent == tuple(map(math.fsum, zip(*costs, strict=True)))


def test_a_sum_beyond_all_floats_is_infinite():
    memory = MemoryLedger()
    for index in range(2):
        memory.append(Charge(index, "", {}, (1.7e308, 1.0)))
    assert memory.spent == (math.inf, math.inf)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("cost", (math.nan,), r"cost\[0\] to be finite, got nan"),
        ("cost", (0.1, math.inf), r"cost\[1\] to be finite, got inf"),
        ("cost", (-0.1,), r"cost\[0\] >= 0, got -0.1"),
        ("cost", (True,), r"cost\[0\] to be a number, got True"),
        ("cost", (), "one number per limit"),
        ("cost", 0.1, "one number per limit"),
        ("index", -1, "index >= 0, got -1"),
        ("index", 0.0, "index to be an integer"),
        ("label", None, "label to be a string"),
        ("mechanism", "Gaussian", "mechanism to be a mapping"),
    ],
)
def test_a_bad_charge_cannot_be_made(field, value, message):
    good: dict[str, object] = {"index": 0, "label": "", "mechanism": {}, "cost": (0.1,)}
    with pytest.raises(ValueError, match=message):
        Charge(**{**good, field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("durable", [False, True])
def test_a_refused_charge_changes_nothing(path, durable):
    bad = [
        (Charge(0, "", {}, (0.1, 0.1)), LedgerError, "index 0, the ledger expects 1"),
        (Charge(2, "", {}, (0.1, 0.1)), LedgerError, "index 2, the ledger expects 1"),
        (Charge(1, "", {}, (0.1,)), ValueError, "2 numbers"),
        (Charge(1, "", {"x": math.nan}, (0.1, 0.1)), ValueError, "public JSON"),
        (Charge(1, "", {"x": object()}, (0.1, 0.1)), ValueError, "public JSON"),
    ]
    with Ledger.open(path, header=HEADER) if durable else MemoryLedger() as ledger:
        ledger.append(charge(0, (0.5, 0.5)))
        before = path.read_bytes() if durable else b""
        for one, error, message in bad:
            with pytest.raises(error, match=message):
                ledger.append(one)
            assert ledger.spent == (0.5, 0.5)
        assert (path.read_bytes() if durable else b"") == before
        ledger.append(charge(1, (0.25, 0.25)))
        assert ledger.spent == (0.75, 0.75)


@pytest.mark.parametrize(
    "key", ["format", "version", "run", "created", "created_by", "chain"]
)
def test_the_keys_of_the_ledger_itself_are_taken(path, key):
    with pytest.raises(ValueError, match=f"got '{key}'"):
        Ledger.open(path, header={key: 1})
    assert os.listdir(path.parent) == []


@pytest.mark.parametrize(
    ("change", "key", "found", "asked"),
    [
        ({"relation": "replace"}, "relation", "'add-remove'", "'replace'"),
        ({"budget": {"epsilon": 2.0, "delta": 1e-5}}, "budget", "1.0", "2.0"),
        ({"guarantee": "absent"}, "guarantee", "'absent'", "'absent'"),
        ({"orders": None}, "orders", r"\[2.0, 8.0\]", "None"),
    ],
)
def test_a_ledger_of_another_run_is_refused(path, change, key, found, asked):
    before = b"".join(sample(path))[:-5]  # torn as well: not even cut off
    path.write_bytes(before)
    message = f"another run: {key} is .*{found}.* in the file and .*{asked}.* in this"
    with pytest.raises(LedgerError, match=message):
        Ledger.open(path, header={**HEADER, **change})
    assert path.read_bytes() == before
    Ledger.open(path, header=HEADER).close()


def test_a_key_that_is_gone_is_another_run(path):
    extend(path, COSTS)
    shorter = {key: HEADER[key] for key in ("budget", "orders")}
    with pytest.raises(LedgerError, match="relation is 'add-remove' in the file and "):
        Ledger.open(path, header=shorter)


@pytest.mark.parametrize("name", ["missing/ledger", "file/ledger", "folder", "pipe"])
@pytest.mark.parametrize("action", ["open", "read"])
def test_a_place_without_a_file_is_refused(tmp_path, name, action):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(LedgerError, match=r"nothing was spent\. (Create|Give)"):
        if action == "open":
            Ledger.open(tmp_path / name, header=HEADER)
        else:
            read_ledger(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("path", ["", "a\0b", 3, None])
def test_what_is_no_path_is_a_bad_argument(path):
    with pytest.raises(ValueError, match="Expected path to be the path of a ledger"):
        Ledger.open(path, header=HEADER)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected path to be the path of a ledger"):
        read_ledger(path)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("exists", [False, True])
def test_a_place_that_cannot_be_written_is_refused(path, monkeypatch, code, exists):
    if exists:
        extend(path, COSTS)
    before = path.read_bytes() if exists else None
    real = os.open

    def refuse(name: str, flags: int, *rest: int, **more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and "ledger" in str(name):
            raise OSError(code, os.strerror(code), name)
        return real(name, flags, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(LedgerError, match=os.strerror(code)):
            Ledger.open(path, header=HEADER)
    assert (path.read_bytes() if path.exists() else None) == before
    extend(path, COSTS)  # the failed attempt holds no lock


def test_a_missing_ledger_is_not_read(path):
    with pytest.raises(LedgerError, match="No such file"):
        read_ledger(path)
    assert os.listdir(path.parent) == []


def test_reading_needs_no_lock_and_writes_nothing(path):
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.append(charge(0, (0.5,)))
        before = path.read_bytes()
        assert read_ledger(path).spent == (0.5,)
        ledger.append(charge(1, (0.5,)))
    torn = path.read_bytes()[:-3]
    path.write_bytes(torn)
    view = read_ledger(path)
    assert (view.spent, view.torn) == ((0.5,), True)
    assert path.read_bytes() == torn
    assert torn.startswith(before)


def test_a_closed_ledger_takes_no_charge(path):
    ledger = Ledger.open(path, header=HEADER)
    ledger.append(charge(0, (0.5,)))
    ledger.close()
    ledger.close()
    before = path.read_bytes()
    with pytest.raises(
        LedgerError, match=r"closed; nothing was spent .* Open it again"
    ):
        ledger.append(charge(1, (0.5,)))
    assert ledger.spent == (0.5,)
    assert path.read_bytes() == before


@pytest.mark.parametrize("duplicate", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_ledger_is_not_copied(path, duplicate):
    with Ledger.open(path, header=HEADER) as ledger:
        with pytest.raises(TypeError, match="spend the same budget again"):
            duplicate(ledger)  # type: ignore[operator]
        ledger.append(charge(0, (0.5,)))
