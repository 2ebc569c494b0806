# SPDX-License-Identifier: Apache-2.0
"""Threads that share an accountant spend one budget; copies and children go on."""

import copy
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from armijo.errors import BudgetExceeded
from armijo.privacy.accountant import Accountant
from armijo.privacy.filter import PrivacyFilter
from armijo.privacy.mechanisms import Gaussian
from armijo.privacy.nonprivate import NonPrivateAccountant
from armijo.privacy.planned import PlannedAccountant
from tests.privacy.accounts import BUDGET, drain

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


def test_a_copy_that_shares_its_ledger_waits_for_its_turn(restless):
    """A shallow copy of an accountant spends from the same sums."""
    watch = filtered()
    fit, twins = drain(filtered(), OFTEN), [copy.copy(watch) for _ in range(THREADS)]

    def spend() -> None:
        own = twins.pop()
        while own.affords(OFTEN):
            try:
                own.charge(OFTEN)
            except BudgetExceeded:
                return

    crowd(spend)
    assert watch.n_charges == fit


def duplicated(watch: Accountant) -> Accountant:
    found: Accountant = pickle.loads(pickle.dumps(watch))
    return found


@pytest.mark.parametrize("make", [filtered, planned])
@pytest.mark.parametrize("duplicate", [copy.deepcopy, duplicated])
def test_a_whole_copy_has_a_turn_of_its_own(make, duplicate):
    watch = make()
    watch.charge(OFTEN)
    with watch._turns:  # whoever holds the one does not keep the other waiting
        twin = duplicate(watch)
        crowd(lambda: twin.charge(OFTEN))
    assert twin.n_charges == 1 + THREADS
    assert watch.n_charges == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_forked_during_a_charge_goes_on(monkeypatch):
    """The thread that held the lock is not in the child, and cannot release it."""
    watch, begun, done = filtered(), threading.Event(), threading.Event()
    append = watch.ledger.append

    def slowly(charge):
        begun.set()
        assert done.wait(60)
        append(charge)

    monkeypatch.setattr(watch.ledger, "append", slowly)
    thread = threading.Thread(target=watch.charge, args=(OFTEN,))
    thread.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for ever is ended, which is seen below
        watch.ledger.append = append
        os._exit(watch.charge(OFTEN))
    done.set()
    thread.join(60)
    assert os.waitpid(child, 0)[1] == 0
    assert watch.n_charges == 1
