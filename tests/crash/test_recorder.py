# SPDX-License-Identifier: Apache-2.0
"""The witness of crashed runs contradicts what it must."""

from pathlib import Path

import pytest

from armijo.accounting.ledger import Ledger, read_ledger
from tests.accounting.ledger_samples import COSTS, HEADER, charge
from tests.crash.recorder import Witness

FIRST = ["open 0", "bits a", "value u", "bits b", "seen 0 x", "open 1", "bits c"]


def heard(folder: Path, *attempts: list[str]) -> Witness:
    witness = Witness()
    for number, lines in enumerate(attempts):
        path = folder / f"log-{number}"
        path.write_text("".join(f"{line}\n" for line in lines))
        witness.hear(path)
    return witness


@pytest.mark.parametrize("length", range(len(FIRST) + 1))
def test_an_attempt_that_goes_less_far_says_nothing_new(tmp_path, length):
    witness = heard(tmp_path, FIRST, FIRST[:length], FIRST)
    assert witness.drawn == {0: ["bits a", "value u", "bits b"], 1: ["bits c"]}
    assert witness.seen == {0: "x"}


@pytest.mark.parametrize(
    ("again", "match"),
    [
        (["open 0", "bits a", "value v"], "charge 0 .* value u, then value v"),
        (["open 0", "bits d", "value u"], "charge 0 .* bits a, then bits d"),
        (["open 0", "bits a", "value u", "bits b", "seen 0 y"], "step 0 differs"),
        (["open 2", "bits a", "value w"], "the same bits were drawn twice"),
        (["open 1", "bits c", "bits a"], "the same bits were drawn twice"),
    ],
)
def test_other_values_for_the_same_noise_are_found(tmp_path, again, match):
    with pytest.raises(AssertionError, match=match):
        heard(tmp_path, FIRST, again)


def test_noise_without_a_charge_is_found(tmp_path):
    witness = heard(tmp_path, FIRST)
    path = tmp_path / "run.ledger"
    with Ledger.open(path, header=HEADER) as ledger:
        ledger.append(charge(0, COSTS[0]))
        with pytest.raises(
            AssertionError, match=r"charges \[1\] are not in the ledger"
        ):
            witness.check_ledger(read_ledger(path))
        ledger.append(charge(1, COSTS[2]))
        witness.check_ledger(read_ledger(path))
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(AssertionError, match=r"charges \[1\] are not in the ledger"):
        witness.check_ledger(read_ledger(path))
