# SPDX-License-Identifier: Apache-2.0
"""The ledger in daily use: exact, durable, hard to misuse."""

import copy
import errno
import gc
import json
import math
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from itertools import count
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armijo.accounting.ledger import (
    Charge,
    Ledger,
    MemoryLedger,
    read_ledger,
    read_lines,
    seal,
)
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import (
    COSTS,
    HEADER,
    charge,
    extend,
    full_disk,
    reopen,
    sample,
    torn_sample,
)

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


def refuse(path: Path, match: str) -> None:
    """Check that a ledger is neither opened nor read, and not touched either."""
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=match):
        Ledger.open(path, header=HEADER)
    with pytest.raises(LedgerError, match=match):
        read_ledger(path)
    assert path.read_bytes() == before


def spent_by(charges: Sequence[Charge]) -> tuple[float, ...]:
    """Add up as the ledger must, by a plain loop over exact fractions."""
    columns = zip(*(one.cost for one in charges), strict=True)
    return tuple(float(sum(map(Fraction, column))) for column in columns)


@pytest.mark.usefixtures("quick")
def test_a_cut_at_any_byte_loses_no_whole_line(path):
    """Noise waits for the sync of its line, so a torn one is a step not made."""
    data = b"".join(sample(path))
    original = read_ledger(path).charges
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut < ends[0]:
            refuse(path, "cut inside its first line" if cut else "is empty")
            continue
        whole = sum(end <= cut for end in ends[1:])
        view = reopen(path)
        assert view.charges == original[:whole]
        assert view.spent == spent_by(original[:whole])
        assert view.torn == (cut not in ends and cut - 1 not in ends)
        if cut % 10 and data[cut - 1 : cut + 1].count(b"\n") == 0:
            continue
        extend(path, [(0.9, 0.9)])
        last = charge(whole, (0.9, 0.9))
        assert read_ledger(path).charges == (*original[:whole], last)
        assert read_ledger(path).spent == spent_by([*original[:whole], last])


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff\xfe garbage", b"{"])
def test_what_a_power_failure_leaves_costs_nothing(path, tail):
    before = b"".join(sample(path))
    expected = read_ledger(path)
    path.write_bytes(before + tail)
    assert reopen(path) == replace(expected, torn=True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("tail", [b"{\n", b"\n", b"{}", b"7", b"\0\n"])
def test_what_no_torn_write_leaves_is_refused(path, tail):
    path.write_bytes(b"".join(sample(path)) + tail)
    refuse(path, "damaged: line 7 ")


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("replacement", [b"\n", b"\0", b"}", b"7", None])
def test_a_changed_byte_anywhere_is_noticed(path, replacement):
    data = b"".join(sample(path))
    for place in range(len(data)):
        new = bytes([data[place] ^ 1]) if replacement is None else replacement
        if new == data[place : place + 1]:
            continue
        with pytest.raises(LedgerError):
            read_lines("", data[:place] + new + data[place + 1 :], MemoryLedger())


@pytest.mark.parametrize("change", ["delete", "double", "swap", "empty"])
def test_lines_that_are_lost_doubled_or_moved_are_noticed(path, change):
    lines = sample(path)
    for place in range(1, len(lines) - 1):
        changed = list(lines)
        if change == "delete":
            del changed[place]
        elif change == "double":
            changed.insert(place, changed[place])
        elif change == "swap":
            changed[place : place + 2] = changed[place + 1], changed[place]
        else:
            changed.insert(place, b"\n")
        path.write_bytes(b"".join(changed))
        number = place + 2 if change == "double" else place + 1
        refuse(path, rf"damaged: line {number} .* Restore it from a copy")


def test_a_torn_line_in_the_middle_is_refused(path):
    lines = sample(path)
    for place in range(1, len(lines) - 1):
        path.write_bytes(b"".join([*lines[:place], b"{\n", *lines[place + 1 :]]))
        refuse(path, f"damaged: line {place + 1} ")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"hello\n",
        b"\x89PNG\r\n\x1a\n" * 9,
        b'{"format": 1}\n',
        b"\0" * 70000,
    ],
)
def test_other_files_are_refused_and_left_alone(path, content):
    path.write_bytes(content)
    cut = b'{"format"'.startswith(content)
    refuse(path, "holds no charge" if cut else "is not a ledger")


@pytest.mark.parametrize("version", ["1", "2", "0", '"3"', "null"])
def test_another_version_is_refused(path, version):
    data = b"".join(sample(path))
    path.write_bytes(data.replace(b'"version":3', f'"version":{version}'.encode(), 1))
    refuse(path, "this release of armijo writes version 3")


@pytest.mark.parametrize(
    "header", [b'{"format":"armijo-ledger","version":[[[', b"[" * 9]
)
def test_a_damaged_header_is_refused(path, header):
    path.write_bytes(header + b"[" * 100_000 + b"\n")
    refuse(path, "line 1 is not JSON|is not a ledger")


GOOD = {"kind": "charge", "index": 5, "label": "", "mechanism": {}, "cost": [0.1, 0.1]}


def chain_of(data: bytes) -> bytes:
    read_lines("", data, ledger := MemoryLedger())
    return ledger._chain


def test_the_forged_line_below_would_be_fine_without_its_change(path):
    data = b"".join(sample(path))
    chain = chain_of(data)
    path.write_bytes(data + seal(chain, json.dumps(GOOD).encode())[0] + b"\n")
    assert len(reopen(path).charges) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "refund"},
        {"kind": None},
        {"kind": "torn", "bytes": 0},
        {"kind": "mended"},
        {"more": 1},
        {"index": 4},
        {"index": 6},
        {"index": "5"},
        {"label": 5},
        {"mechanism": []},
        {"cost": [0.1]},
        {"cost": [-1.0, 0.1]},
        {"cost": [float("nan"), 0.1]},
        {"cost": [10**400, 0.1]},
        {"cost": "free"},
        {"cost": None},
    ],
)
def test_a_sealed_line_that_makes_no_sense_is_refused(path, change):
    data = b"".join(sample(path))
    chain = chain_of(data)
    payload = json.dumps({**GOOD, **change}).encode()
    path.write_bytes(data + seal(chain, payload)[0] + b"\n")
    refuse(path, "line 7 is out of place")


@given(st.data())
def test_no_bytes_make_the_reader_fail_otherwise(data):
    chain = b""
    content = b""
    pieces = data.draw(st.lists(st.tuples(st.booleans(), st.binary(max_size=40))))
    payload = b'{"format":"armijo-ledger","version":3,"run":"0"}'
    for honest, piece in [(True, payload[:-1]), *pieces]:
        line, chain = seal(chain, piece + b"}") if honest else (piece, chain)
        content += line + b"\n"
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        _, whole = read_lines("fuzz", content, book := MemoryLedger())
    except LedgerError:
        return
    again = MemoryLedger()
    assert read_lines("fuzz", content[:whole], again)[1] == whole
    assert again.charges == book.charges


@pytest.mark.parametrize("room", [0, 1, 30, 150])
def test_a_full_disk_spends_nothing_and_poisons(path, monkeypatch, room):
    cost = (0.9, 0.9)
    extend(path, COSTS)
    with Ledger.open(path, header=HEADER) as ledger:
        spent, before = ledger.spent, path.read_bytes()
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full_disk(room))
            with pytest.raises(
                LedgerError, match=r"No space left .* nothing was spent"
            ):
                ledger.append(charge(5, cost))
        assert ledger.spent == spent
        with pytest.raises(LedgerError, match="did not finish; nothing was spent"):
            ledger.append(charge(5, cost))
        assert ledger.spent == spent
    left = path.read_bytes()
    assert left.startswith(before)
    assert len(left) == len(before) + room
    view = reopen(path)
    assert (view.spent, view.torn) == (spent, room > 0)
    assert path.read_bytes() == before
    extend(path, [cost])
    assert reopen(path).charges[-1].cost == cost


@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "I/O error"), KeyboardInterrupt()]
)
def test_a_failing_sync_poisons_and_the_line_counts(path, monkeypatch, error):
    def fail(fd: int) -> None:
        raise error

    expected = LedgerError if isinstance(error, OSError) else KeyboardInterrupt
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.append(charge(0, (0.5, 0.5)))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail)
            with pytest.raises(expected):
                ledger.append(charge(1, (0.25, 0.5)))
        assert ledger.spent == (0.5, 0.5)
        with pytest.raises(LedgerError, match="did not finish"):
            ledger.append(charge(1, (0.25, 0.5)))
    assert reopen(path).spent == (0.75, 1.0)


def test_short_writes_are_continued(path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
        extend(path, COSTS)
        patch.setattr(os, "write", lambda fd, data: 0)
        with (
            Ledger.open(path, header=HEADER) as ledger,
            pytest.raises(LedgerError, match="nothing could be written"),
        ):
            ledger.append(charge(5, (0.1, 0.1)))
    assert [one.cost for one in reopen(path).charges] == COSTS


@pytest.mark.usefixtures("quick")
def test_a_disk_that_fills_at_any_write_never_loses_a_charge(path, monkeypatch):
    size = sum(map(len, sample(path)))
    path.unlink()
    for room in count(step=5):
        granted: list[tuple[float, ...]] = []
        with monkeypatch.context() as patch, suppress(LedgerError):
            patch.setattr(os, "write", full_disk(room))
            with Ledger.open(path, header=HEADER) as ledger:
                for cost in COSTS:
                    ledger.append(charge(ledger.next_index, cost))
                    granted.append(cost)
        if not path.exists():
            assert not granted
            assert os.listdir(path.parent) == ["run.ledger.lock"]
        else:
            found = [one.cost for one in reopen(path).charges]
            assert found[: len(granted)] == granted
            assert len(found) <= len(granted) + 1  # all but the newline
            path.unlink()
        if room > size:
            assert granted == COSTS
            return


@pytest.mark.parametrize("call", ["ftruncate", "fsync"])
def test_a_repair_that_fails_can_be_repeated(path, monkeypatch, call):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    torn_sample(path)
    expected = read_ledger(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(LedgerError, match=r"Cannot open .* error"):
            Ledger.open(path, header=HEADER)
    assert read_ledger(path).charges == expected.charges
    assert reopen(path).charges == expected.charges


def test_a_file_system_without_links_still_gets_a_ledger(path, monkeypatch):
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        extend(path, COSTS)
    assert [one.cost for one in reopen(path).charges] == COSTS
    assert sorted(os.listdir(path.parent)) == ["run.ledger", "run.ledger.lock"]


def test_a_file_that_appears_meanwhile_is_not_overwritten(path, monkeypatch):
    real = os.link

    def late(source: str, target: str) -> None:
        Path(target).write_text("precious")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", late)
        with pytest.raises(LedgerError, match="File exists"):
            Ledger.open(path, header=HEADER)
    assert path.read_text() == "precious"
    assert sorted(os.listdir(path.parent)) == ["run.ledger", "run.ledger.lock"]


@pytest.mark.parametrize("change", ["delete", "replace", "append", "truncate"])
def test_a_file_changed_by_someone_else_takes_no_charge(path, change):
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.append(charge(0, (0.5, 0.5)))
        data = path.read_bytes()
        if change in ("delete", "replace"):
            path.rename(path.with_name("moved"))
        content = {"replace": data, "append": data + b"{", "truncate": data[:-1]}
        if change in content:
            path.write_bytes(content[change])
        with pytest.raises(LedgerError, match="nothing was spent"):
            ledger.append(charge(1, (0.5, 0.5)))
        assert ledger.spent == (0.5, 0.5)
    if change in content:
        assert path.read_bytes() == content[change]


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a Python process that has the ledger imported and HEADER set."""
    imports = "from armijo.accounting.ledger import Charge, Ledger\n"
    imports += "from armijo.errors import LedgerError\nimport os, sys\n"
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{imports}HEADER = {HEADER!r}\n{textwrap.dedent(script)}",
            *map(str, arguments),
        ],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def test_the_second_opener_is_refused(path, tmp_path):
    alias = tmp_path / "alias"
    alias.symlink_to(path)
    with Ledger.open(path, header=HEADER) as ledger:
        for name in (path, alias, os.path.relpath(path)):
            with pytest.raises(LedgerError, match=r"run\.ledger is in use by another"):
                Ledger.open(name, header=HEADER)
        other = run_python(
            """
            try:
                Ledger.open(sys.argv[1], header=HEADER)
            except LedgerError as error:
                print(error)
            """,
            path,
        )
        assert (
            f"{path} is in use by another process" in other.communicate(timeout=60)[0]
        )
        ledger.append(charge(0, (0.5,)))
    extend(alias, [(0.25,)])
    assert read_ledger(path).spent == (0.75,)


def test_a_forgotten_ledger_frees_its_lock(path):
    ledger = Ledger.open(path, header=HEADER)
    descriptors = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    del ledger
    gc.collect()
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors - 2
    Ledger.open(path, header=HEADER).close()


def test_a_failed_opening_leaves_no_lock_and_no_descriptor(path):
    path.write_text("something else")
    count = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    held = []  # the traceback keeps the half-made object alive
    for _ in range(3):
        with pytest.raises(LedgerError, match="is not a ledger") as refusal:
            Ledger.open(path, header=HEADER)
        held.append(refusal)
    if count:
        assert len(os.listdir("/proc/self/fd")) == count
    path.unlink()
    Ledger.open(path, header=HEADER).close()


def test_killing_the_holder_frees_the_lock_and_loses_no_charge(path):
    script = """
    ledger = Ledger.open(sys.argv[1], header=HEADER)
    while True:
        ledger.append(Charge(ledger.next_index, "step", {}, (0.5,)))
        print(ledger.next_index, flush=True)
    """
    for reached in (3, 40, 90):
        holder = run_python(script, path)
        assert holder.stdout is not None
        seen = 0
        while seen < reached:
            seen = int(holder.stdout.readline())
        with pytest.raises(LedgerError, match="in use"):
            Ledger.open(path, header=HEADER)
        holder.send_signal(signal.SIGKILL)
        # Not communicate(), which passes over what readline has in its buffer.
        seen = max([seen, *map(int, holder.stdout.read().split())])
        holder.communicate(timeout=60)  # closes the pipes
        with Ledger.open(path, header=HEADER) as ledger:
            # At most the charge that was on its way is counted and was not reported.
            assert seen <= ledger.next_index <= seen + 1
            assert ledger.spent == (0.5 * ledger.next_index,)


def test_a_child_process_cannot_charge_nor_free_the_lock(path):
    script = """
    ledger = Ledger.open(sys.argv[1], header=HEADER)
    ledger.append(Charge(0, "", {}, (0.5,)))
    child = os.fork()
    if not child:
        try:
            ledger.append(Charge(1, "", {}, (0.5,)))
        except LedgerError as error:
            ledger.close()
            del ledger
            sys.exit("a child of it" not in str(error))
        sys.exit(2)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    sys.stdin.readline()
    ledger.append(Charge(1, "", {}, (0.25,)))
    """
    parent = run_python(script, path)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "0\n"
    with pytest.raises(LedgerError, match="in use"):
        Ledger.open(path, header=HEADER)
    parent.communicate("\n", timeout=60)
    assert parent.returncode == 0
    assert read_ledger(path).spent == (0.75,)


def test_threads_on_one_ledger_never_break_the_file(path):
    refused = []

    def work(ledger: Ledger) -> None:
        for _ in range(20):
            try:
                ledger.append(charge(ledger.next_index, (0.5,)))
            except LedgerError:  # another thread took the index
                refused.append(1)

    with Ledger.open(path, header=HEADER) as ledger:
        threads = [threading.Thread(target=work, args=(ledger,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(read_ledger(path).charges) == 80 - len(refused)
    assert ledger.spent == read_ledger(path).spent


KEY = "0123456789abcdef"


def keyed(path: Path, begin: int = 0, end: int = len(COSTS), key: str = KEY) -> None:
    """Open the ledger as a run with a key does, from a checkpoint to some step."""
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(key)
        ledger.rewind(begin)
        for index in range(begin, end):
            ledger.append(charge(index, COSTS[index]))


def expected() -> MemoryLedger:
    ledger = MemoryLedger()
    for index, cost in enumerate(COSTS):
        ledger.append(charge(index, cost))
    return ledger


def assert_whole(path: Path) -> None:
    view = read_ledger(path)
    assert view.charges == tuple(expected().charges)
    assert view.spent == expected().spent


@given(
    stops=st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 400)), max_size=4
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("quick")
def test_however_often_it_is_torn_each_charge_is_counted_once(tmp_path, stops):
    """A stop is some steps to a checkpoint, some more, and a death that cuts bytes."""
    path = tmp_path / "run.ledger"
    path.unlink(missing_ok=True)
    saved = 0
    for settled, more, cut in stops:
        begin, saved = saved, min(saved + settled, len(COSTS))
        keyed(path, begin, saved)
        size = path.stat().st_size  # no write before the checkpoint can be torn
        keyed(path, saved, min(saved + more, len(COSTS)))
        with path.open("rb+") as file:
            file.truncate(max(path.stat().st_size - cut, size))
    keyed(path, saved)
    assert_whole(path)


@pytest.mark.parametrize("begin", range(len(COSTS)))
def test_charges_in_the_file_are_not_written_again(path, begin):
    keyed(path)
    before = path.read_bytes()
    keyed(path, begin)
    assert path.read_bytes() == before
    assert_whole(path)


def test_sums_go_back_and_forth(path):
    keyed(path)
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(KEY)
        ledger.rewind(0)
        assert (ledger.next_index, ledger.spent) == (0, ())
        other = MemoryLedger()
        for index, cost in enumerate(COSTS):
            for one in (ledger, other):
                one.append(charge(index, cost))
            assert ledger.spent == other.spent
            assert ledger.next_index == other.next_index
        ledger.append(charge(len(COSTS), (0.9, 0.9)))
    assert len(read_ledger(path).charges) == len(COSTS) + 1


def torn(path: Path, cut: int = 30) -> bytes:
    keyed(path)
    data = path.read_bytes()[:-cut]
    path.write_bytes(data)
    return data


def test_a_torn_charge_is_written_anew_in_its_place(path):
    data = torn(path)
    keyed(path, 2)
    assert path.read_bytes().startswith(data)
    assert_whole(path)
    assert not read_ledger(path).torn


@pytest.mark.parametrize(
    ("first", "second", "begin"),
    [("", KEY, 0), (KEY, "", 0), ("another", KEY, 0), (KEY, KEY, 6)],
)
def test_charges_of_others_are_not_expected_again(path, first, second, begin):
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(first)
        for index, cost in enumerate(COSTS):
            ledger.append(charge(index, cost))
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(second)
        with pytest.raises(LedgerError, match=r"cannot go back.*nothing was spent"):
            ledger.rewind(begin)
        assert ledger.next_index == len(COSTS)


def test_keys_are_no_part_of_what_was_done(path):
    keyed(path)
    other = path.with_name("other.ledger")
    keyed(other, key="fedcba9876543210")
    assert read_ledger(path).charges == read_ledger(other).charges
    assert {one.key for one in read_ledger(other).charges} == {"fedcba9876543210"}
