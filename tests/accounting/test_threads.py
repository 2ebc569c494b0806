# SPDX-License-Identifier: Apache-2.0
"""Threads that share an accountant spend one budget; copies and children do not."""

import copy
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from armijo.accounting.accountants import (
    Accountant,
    NonPrivateAccountant,
    PlannedAccountant,
    PrivacyFilter,
)
from armijo.accounting.ledger import Charge, MemoryLedger
from armijo.accounting.mechanisms import Gaussian
from armijo.errors import BudgetExceeded, LedgerError
from tests.accounting.accounts import BUDGET, drain

OFTEN, SELDOM = Gaussian(noise_scale=200.0), Gaussian(noise_scale=300.0)
THREADS = 16


def filtered() -> Accountant:
    return PrivacyFilter(BUDGET)


def planned() -> Accountant:
    return PlannedAccountant(BUDGET, [(OFTEN, 50), (SELDOM, 50)])


def counted() -> Accountant:
    return NonPrivateAccountant(BUDGET, accesses=50)


@pytest.fixture
def restless() -> Iterator[None]:
    """Let another thread go on after every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def crowd(work: Callable[[], object]) -> None:
    """Run the same in many threads at once."""
    threads = [threading.Thread(target=work, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("make", [filtered, planned, counted])
def test_as_many_charges_are_accepted_as_fit(make, restless):
    fit = drain(make(), OFTEN)
    for _ in range(5):
        watch, paid = make(), []

        def spend(watch: Accountant = watch, paid: list[int] = paid) -> None:
            while True:
                try:
                    paid.append(watch.charge(OFTEN))
                except BudgetExceeded:
                    return

        crowd(spend)
        assert sorted(paid) == list(range(fit))
        assert watch.n_charges == fit
        assert [one.index for one in watch.ledger.charges] == list(range(fit))


@pytest.mark.parametrize("make", [filtered, planned, counted, MemoryLedger])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copy_has_the_budget_a_second_time(make, duplicate):
    with pytest.raises(TypeError, match="spend the same budget again"):
        duplicate(make())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("make", [filtered, planned, counted])
def test_a_forked_child_is_refused_and_can_make_its_own(make):
    """Also while a thread of the parent holds the lock, which nobody releases there."""
    watch = make()
    with watch._turns:
        child = os.fork()
        if child == 0:
            _in_the_child(watch, make)
    assert os.waitpid(child, 0)[1] == 0
    assert watch.charge(OFTEN) == 0


def _in_the_child(watch, make):
    """Try to charge; end the process whatever happens, or it would go on testing."""
    signal.alarm(30)  # one that waits for ever is ended, which is seen
    seen, code = [], 1
    entry = Charge(0, "", {}, (1.0,))
    try:
        for spend in (lambda: watch.charge(OFTEN), lambda: watch.ledger.append(entry)):
            try:
                spend()
            except LedgerError as error:
                seen.append("a child of it" in str(error))
        code = 0 if seen == [True, True] and make().charge(OFTEN) == 0 else 1
    finally:
        os._exit(code)
