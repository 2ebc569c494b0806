# SPDX-License-Identifier: Apache-2.0
"""The ledger on a disk that fails: nothing is spent by the call, nothing is lost."""

import errno
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from armijo.accounting.ledger import Ledger, read_ledger
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
