# SPDX-License-Identifier: Apache-2.0
"""A ledger that is rewound: charges are expected again and written at most once."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armijo.accounting.ledger import Ledger, MemoryLedger, read_ledger
from armijo.errors import LedgerError
from tests.accounting.ledger_samples import COSTS, HEADER, charge

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
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
