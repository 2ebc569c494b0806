# SPDX-License-Identifier: Apache-2.0
"""A ledger that is rewound: charges are expected again and written at most once."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armijo.accounting.ledger import Ledger, MemoryLedger, read_ledger
from armijo.accounting.ledger_lines import Book, charge_payload, read_lines, seal
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import COSTS, HEADER, charge

KEY = "0123456789abcdef"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.ledger"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave syncing out where hundreds of files are opened."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


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
@settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
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
    assert b'"kind":"mended","index":4' in path.read_bytes()
    assert_whole(path)
    assert read_ledger(path).torn == 1


def test_a_charge_that_was_torn_while_it_was_mended(path):
    torn(path)
    keyed(path, 2)
    for cut in (7, 60, 120):
        path.write_bytes(path.read_bytes()[:-cut])
        assert len(read_ledger(path).charges) > len(COSTS)
        keyed(path, 3)
        assert_whole(path)
    assert read_ledger(path).torn == 4


def test_a_torn_charge_of_no_key_stays_counted(path):
    torn(path)
    with Ledger.open(path, header=HEADER) as ledger:
        assert ledger.next_index == len(COSTS)
        ledger.append(charge(5, COSTS[0]))
    view = read_ledger(path)
    assert len(view.charges) == len(COSTS) + 1
    assert view.charges[4].label == "torn line"
    assert view.charges[4].cost == (0.2, 0.7)


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


def test_a_torn_line_between_whole_ones_is_not_expected_again(path):
    """Whoever went on behind a torn line took it for paid."""
    torn(path)
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(KEY)
        ledger.append(charge(5, COSTS[0]))
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.use_key(KEY)
        with pytest.raises(LedgerError, match="cannot go back"):
            ledger.rewind(3)
        ledger.rewind(5)


@pytest.mark.parametrize("index", [0, 3, 4, 5])
def test_a_mended_charge_needs_a_torn_line(path, index):
    keyed(path)
    data = path.read_bytes()
    chain = read_lines(str(path), data)[1].chain
    line, _ = seal(chain, charge_payload(charge(index, COSTS[0]), "mended"))
    path.write_bytes(data + line + b"\n")
    with pytest.raises(LedgerError, match="line 10 is out of place"):
        read_ledger(path)


def test_a_mended_charge_may_not_exceed_what_was_announced(path):
    torn(path)
    with Ledger.open(path, header=HEADER):
        pass
    data = path.read_bytes()
    chain = read_lines(str(path), data)[1].chain
    line, _ = seal(chain, charge_payload(charge(4, (0.3, 0.1)), "mended"))
    path.write_bytes(data + line + b"\n")
    with pytest.raises(LedgerError, match="above the announced ceiling"):
        read_ledger(path)


def test_keys_are_no_part_of_what_was_done(path):
    keyed(path)
    other = path.with_name("other.ledger")
    keyed(other, key="fedcba9876543210")
    assert read_ledger(path).charges == read_ledger(other).charges
    assert {one.key for one in read_ledger(other).charges} == {"fedcba9876543210"}


def test_a_book_forgets_what_is_taken_back():
    book = Book()
    for index, cost in enumerate(COSTS):
        book.count(charge(index, cost))
    assert [one.index for one in book.rewind(2)] == [2, 3, 4]
    assert book.spent == (0.1 + 0.2, 0.3 + 0.1)
