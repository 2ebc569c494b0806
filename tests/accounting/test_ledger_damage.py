# SPDX-License-Identifier: Apache-2.0
"""The ledger after a crash or with damaged bytes: no whole line is ever lost."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
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
from tests.accounting.ledger_samples import HEADER, charge, extend, reopen, sample


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


@settings(max_examples=300)
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
