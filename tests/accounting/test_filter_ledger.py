# SPDX-License-Identifier: Apache-2.0
"""A filter whose charges are on disk: interrupted, refused, torn, or of another run."""

import json
from pathlib import Path

import pytest

from armijo.accounting.accountants import PrivacyFilter
from armijo.accounting.budget import Neighboring
from armijo.accounting.ledger import Charge, Ledger, MemoryLedger, read_ledger
from armijo.accounting.mechanisms import Gaussian, PureDP, Subsampled, describe
from armijo.errors import BudgetExceeded, LedgerError, UnchargedAccess
from tests.accounting.accounts import BUDGET, STEP, Fixed, drain, on_file, snapshot


def opened(path: Path, **settings: object) -> PrivacyFilter:
    """A filter that writes its charges to a file."""
    return on_file(PrivacyFilter(BUDGET, **settings), path)


SCHEDULE = [
    Subsampled(Gaussian(noise_scale=scale), 0.1 + 0.01 * k)
    for k, scale in enumerate([7.3, 6.1, 5.9, 8.8, 6.6, 7.7, 9.1, 5.3])
]


@pytest.mark.parametrize("interrupted", [{0}, {3}, {1, 2, 5}, set(range(8))], ids=str)
def test_reopened_ledger_equals_an_uninterrupted_run(tmp_path, interrupted):
    straight = PrivacyFilter(BUDGET)
    watch = opened(tmp_path / "run.ledger")
    for k, mechanism in enumerate(SCHEDULE):
        straight.charge(mechanism, label=f"step {k}")
        watch.charge(mechanism, label=f"step {k}")
        if k in interrupted:
            watch.ledger.close()
            watch = opened(tmp_path / "run.ledger")
    assert snapshot(watch) == snapshot(straight)
    assert watch.header() == straight.header()
    assert watch.epsilon_spent() == straight.epsilon_spent()
    assert drain(watch, STEP) == drain(straight, STEP)
    assert watch.spent.tolist() == straight.spent.tolist()


def test_refused_charge_is_not_written(tmp_path):
    path = tmp_path / "run.ledger"
    watch = opened(path)
    watch.charge(STEP)
    before = path.read_bytes()
    with pytest.raises(BudgetExceeded):
        watch.charge(PureDP(30.0))
    with pytest.raises(UnchargedAccess):
        watch.charge(STEP, batch=0)
    with pytest.raises(ValueError, match="positive cost"):
        watch.charge(Fixed(0.0))
    assert path.read_bytes() == before
    assert watch.n_charges == 1


def test_charge_is_on_disk_when_it_returns(tmp_path):
    path = tmp_path / "run.ledger"
    watch = opened(path)
    for count in (1, 2, 3):
        watch.charge(STEP, label="step")
        view = read_ledger(path)
        assert len(view.charges) == count
        assert view.spent == tuple(watch.spent.tolist())
        assert view.charges[-1].mechanism == json.loads(json.dumps(describe(STEP)))


def test_torn_line_is_a_charge_whose_noise_was_never_drawn(tmp_path):
    path = tmp_path / "run.ledger"
    watch = opened(path)
    for _ in range(2):
        watch.charge(STEP)
    spent = watch.spent[0]
    watch.charge(STEP)
    watch.ledger.close()
    path.write_bytes(path.read_bytes()[:-7])
    again = opened(path)
    assert again.n_charges == 2
    assert again.spent[0] == spent
    assert again.epsilon_spent() < watch.epsilon_spent()


def test_ledger_of_other_settings_is_refused(tmp_path):
    path = tmp_path / "run.ledger"
    opened(path).ledger.close()
    before = path.read_bytes()
    for other in (
        {"order": 24},
        {"relation": Neighboring.ZERO_OUT},
        {"insecure_deterministic": True},
        {"order": 30},
    ):
        with pytest.raises(LedgerError, match="another run"):
            opened(path, **other)
    assert path.read_bytes() == before


def test_ledger_with_another_number_of_sums_is_refused():
    other = MemoryLedger()
    other.append(Charge(0, "step", {"mechanism": "of two sums"}, (0.1, 0.2)))
    with pytest.raises(LedgerError, match="2 running sums, expected 1"):
        PrivacyFilter(BUDGET).attach(other)


def test_an_accountant_has_one_ledger(tmp_path):
    watch = opened(tmp_path / "run.ledger")
    with pytest.raises(LedgerError, match="cannot go on in another one"):
        watch.attach(MemoryLedger())
    charged = PrivacyFilter(BUDGET)
    charged.charge(STEP)
    with pytest.raises(LedgerError, match="1 charges"):
        charged.attach(MemoryLedger())


@pytest.mark.parametrize("missing", [False, True])
def test_a_ledger_with_the_header_of_another_accountant_is_refused(tmp_path, missing):
    watch = PrivacyFilter(BUDGET, order=24)
    header = PrivacyFilter(BUDGET, order=30).header()
    if missing:
        header = {key: one for key, one in watch.header().items() if key != "orders"}
    with (
        Ledger.open(tmp_path / "run.ledger", header=header) as ledger,
        pytest.raises(LedgerError, match=r"another run: (limits|orders)"),
    ):
        watch.attach(ledger)
    assert isinstance(watch.ledger, MemoryLedger) and not watch.n_charges
