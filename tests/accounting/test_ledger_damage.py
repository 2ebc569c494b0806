# SPDX-License-Identifier: Apache-2.0
"""The ledger after a crash or with damaged bytes: it never shows too little."""

import json
import os
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo.accounting.ledger import Charge, Ledger, read_ledger
from armijo.accounting.ledger_lines import read_lines, seal
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import (
    COSTS,
    HEADER,
    at_least,
    charge,
    extend,
    reopen,
    sample,
    torn_sample,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ledger"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncing out where thousands of files are opened."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def refuse(path: Path, match: str) -> None:
    """Check that a ledger is neither opened nor read, and not touched either."""
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=match):
        Ledger.open(path, header=HEADER)
    with pytest.raises(LedgerError, match=match):
        read_ledger(path)
    assert path.read_bytes() == before


def kinds(data: bytes) -> list[str]:
    """Name the kinds of the lines after the header; torn ones are ``?``."""
    found = []
    for line in data.splitlines()[1:]:
        try:
            found.append(json.loads(line)["kind"])
        except ValueError:
            found.append("?")
    return found


def spent_by(charges: list[Charge]) -> tuple[float, ...]:
    """Add up as the ledger must, by a plain loop over exact fractions."""
    columns = zip(*(one.cost for one in charges), strict=True)
    return tuple(float(sum(map(Fraction, column))) for column in columns)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [lambda p: b"".join(sample(p)), torn_sample])
def test_a_cut_at_any_byte_never_loses_a_charge(path: Path, make: object) -> None:
    data: bytes = make(path)  # type: ignore[operator]
    original = list(read_ledger(path).charges)
    ends = [place for place, byte in enumerate(data) if byte == ord("\n")]
    spans = list(zip(kinds(data), ends[:-1], ends[1:], strict=True))
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        if cut < ends[0]:
            refuse(path, "cut inside its first line" if cut else "is empty")
            continue
        complete = sum(k in ("charge", "torn") and end <= cut for k, _, end in spans)
        begun = sum(k in ("charge", "?") and start + 1 < cut for k, start, _ in spans)
        view = reopen(path)
        assert list(view.charges[:complete]) == original[:complete]
        assert at_least(view.spent, spent_by(original[:begun]))
        assert begun <= len(view.charges) <= begun + 1
        if cut % 10 and data[cut - 1 : cut + 1].count(b"\n") == 0:
            continue
        extend(path, [(0.9, 0.9)])
        last = charge(len(view.charges), (0.9, 0.9))
        assert read_ledger(path).charges == (*view.charges, last)
        assert read_ledger(path).spent == spent_by([*view.charges, last])


def test_a_torn_charge_costs_the_ceiling_and_a_torn_announcement_nothing(
    path: Path,
) -> None:
    lines = sample(path)
    order = kinds(b"".join(lines))
    assert order == [*["announce", "charge"] * 2, "charge", "announce", *["charge"] * 2]
    ceilings = {2: (0.1, 0.3), 4: (0.2, 0.3), 5: (0.2, 0.3), 7: (0.2, 0.7)}
    for number, kind in enumerate(order, start=1):
        before = b"".join(lines[:number])
        path.write_bytes(before + lines[number][:40])
        whole = [Charge(0, "", {}, cost) for cost in COSTS]
        done = kinds(before).count("charge")
        view = reopen(path)
        if kind == "announce":
            assert len(view.charges) == done
            assert view.spent == spent_by(whole[:done])
        elif number in ceilings:
            torn = Charge(
                done, "torn line", {"torn": True, "bytes": 40}, ceilings[number]
            )
            assert view.charges[-1] == torn
            assert view.spent == spent_by([*whole[:done], torn])
        assert view.torn == 1


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\xff\xfe garbage", b"{\n", b"\n"])
def test_what_a_power_failure_leaves_is_a_torn_charge(path: Path, tail: bytes) -> None:
    before = b"".join(sample(path))
    path.write_bytes(before + tail)
    assert reopen(path).charges[-1].cost == (0.2, 0.7)
    assert path.read_bytes().startswith(before + tail)


@pytest.mark.usefixtures("quick")
def test_a_crash_while_a_torn_line_is_recorded_is_mended_alike(path: Path) -> None:
    torn = b"".join(sample(path))[:-30]
    path.write_bytes(torn)
    view = reopen(path)
    mended = path.read_bytes()
    assert mended.startswith(torn + b'\n{"kind":"torn"')
    for cut in range(len(torn), len(mended)):
        path.write_bytes(mended[:cut])
        assert reopen(path) == view
        assert path.read_bytes() == mended


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("make", [lambda p: b"".join(sample(p)), torn_sample])
@pytest.mark.parametrize("replacement", [b"\n", b"\0", b"}", b"7", None])
def test_a_changed_byte_anywhere_is_noticed(
    path: Path, make: object, replacement: bytes | None
) -> None:
    data: bytes = make(path)  # type: ignore[operator]
    view = read_ledger(path)
    last = data[:-1].rindex(b"\n") + 1
    for place in range(len(data)):
        new = bytes([data[place] ^ 1]) if replacement is None else replacement
        if new == data[place : place + 1]:
            continue
        changed = data[:place] + new + data[place + 1 :]
        try:
            read_lines("", changed)
        except LedgerError:
            continue
        path.write_bytes(changed)
        found = reopen(path)
        # The last line may look torn; it then counts for no less than before.
        assert place >= last
        assert found.torn == view.torn + 1
        assert found.charges[:-1] == view.charges[:-1]
        assert at_least(found.spent, view.spent)


@pytest.mark.parametrize("change", ["delete", "double", "swap", "empty"])
def test_lines_that_are_lost_doubled_or_moved_are_noticed(
    path: Path, change: str
) -> None:
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


def test_a_torn_line_in_the_middle_needs_its_own_record(path: Path) -> None:
    data = torn_sample(path)
    lines = data.splitlines(keepends=True)
    place = kinds(data).index("?") + 1
    assert kinds(data)[place] == "torn"
    for changed in (
        lines[: place + 1] + lines[place + 2 :],
        [*lines[:place], b"{\n", *lines[place + 1 :]],
        [*lines[:place], *lines[place + 1 :]],
    ):
        path.write_bytes(b"".join(changed))
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
def test_other_files_are_refused_and_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    cut = b'{"format"'.startswith(content)
    refuse(path, "holds no charge" if cut else "is not a ledger")


@pytest.mark.parametrize("version", ["1", "0", '"2"', "null"])
def test_another_version_is_refused(path: Path, version: str) -> None:
    data = b"".join(sample(path))
    path.write_bytes(data.replace(b'"version":2', f'"version":{version}'.encode(), 1))
    refuse(path, "this release of armijo writes version 2")


@pytest.mark.parametrize(
    "header", [b'{"format":"armijo-ledger","version":[[[', b"[" * 9]
)
def test_a_damaged_header_is_refused(path: Path, header: bytes) -> None:
    path.write_bytes(header + b"[" * 100_000 + b"\n")
    refuse(path, "line 1 is not JSON|is not a ledger")


GOOD = {"kind": "charge", "index": 5, "label": "", "mechanism": {}, "cost": [0.1, 0.1]}


def test_the_forged_line_below_would_be_fine_without_its_change(path: Path) -> None:
    data = b"".join(sample(path))
    chain = read_lines("", data)[1].chain
    path.write_bytes(data + seal(chain, json.dumps(GOOD).encode())[0] + b"\n")
    assert len(reopen(path).charges) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "refund"},
        {"kind": None},
        {"kind": "torn", "bytes": 0, "digest": ""},
        {"kind": "announce", "ceiling": [0.1, 0.1]},
        {"kind": "announce", "ceiling": [9.0, 9.0, 9.0]},
        {"kind": "announce", "ceiling": "high"},
        {"index": 4},
        {"index": 6},
        {"index": "5"},
        {"label": 5},
        {"mechanism": []},
        {"cost": [0.1]},
        {"cost": [9.0, 0.1]},
        {"cost": [-1.0, 0.1]},
        {"cost": [float("nan"), 0.1]},
        {"cost": [10**400, 0.1]},
        {"cost": "free"},
        {"cost": None},
    ],
)
def test_a_sealed_line_that_makes_no_sense_is_refused(
    path: Path, change: dict[str, object]
) -> None:
    data = b"".join(sample(path))
    chain = read_lines("", data)[1].chain
    payload = json.dumps({**GOOD, **change}).encode()
    path.write_bytes(data + seal(chain, payload)[0] + b"\n")
    refuse(path, "line 10 is out of place")


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_bytes_make_the_reader_fail_otherwise(data: st.DataObject) -> None:
    chain = b""
    content = b""
    pieces = data.draw(st.lists(st.tuples(st.booleans(), st.binary(max_size=40))))
    payload = b'{"format":"armijo-ledger","version":2,"run":"0"}'
    for honest, piece in [(True, payload[:-1]), *pieces]:
        line, chain = seal(chain, piece + b"}") if honest else (piece, chain)
        content += line + b"\n"
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        _, book, repair = read_lines("fuzz", content)
    except LedgerError:
        return
    again = read_lines("fuzz", content + repair)
    assert again[1].charges == book.charges
    assert again[2] == b""
