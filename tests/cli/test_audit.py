# SPDX-License-Identifier: Apache-2.0
"""``armijo audit``: what it prints and how it ends."""

import json

import pytest

from tests.audit import broken
from tests.cli.conftest import parsed, shown

USUAL = ("audit", "--method", "majority", "--trials", "40", "--seed", "3")


def test_prints_claimed_and_audited(armijo):
    text = shown(armijo(*USUAL))
    assert "claimed" in text and "audited" in text
    assert "majority 0 2" in text
    assert "REFUTED" not in text
    assert "never prove" in text


def test_json_is_one_object_with_every_game(armijo):
    found = parsed(armijo(*USUAL, "--method", "privgene", "--epsilon", "1.5", "--json"))
    assert found["passed"] is True
    assert [game["name"] for game in found["games"]] == ["majority", "privgene"]
    assert found["games"][0]["claimed_epsilon"] == 1.5
    assert found["games"][0]["audited_epsilon"] >= 0
    assert found["games"][0]["confidence"] == pytest.approx(1 - 0.05 / 2)


def test_leaves_files_where_it_is_told(armijo, tmp_path):
    folder = tmp_path / "audit"
    shown(armijo(*USUAL, "--out", folder))
    names = {path.name for path in folder.iterdir()}
    assert names == {"audit.json", "audit.png", "audit.svg"}


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_a_refuted_claim_is_exit_code_four(armijo, monkeypatch, flags):
    broken.choice_sharpened(monkeypatch)
    words = [*USUAL, "--epsilon", "0.5", "--trials", "200", *flags]
    finished = armijo(*words)
    assert finished.code == 4
    assert "majority is refuted" in finished.err
    if flags:
        found = json.loads(finished.out)
        assert found["refuted"] == ["majority"]
        assert found["games"][0]["exceeds"] is True
    else:
        assert "REFUTED" in finished.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--method", "nonsense"), "Expected audit to be one of"),
        (("--trials", "3"), "trials >= 20"),
        (("--epsilon", "0"), "epsilon > 0"),
        (("--delta", "1"), "0 < delta < 1"),
        (("--confidence", "2"), "0 < confidence < 1"),
    ],
)
def test_bad_arguments_are_refused(armijo, words, message):
    finished = armijo(*USUAL, *words)
    assert finished.code == 2
    assert message in finished.err
