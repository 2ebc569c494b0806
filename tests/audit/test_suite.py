# SPDX-License-Identifier: Apache-2.0
"""Whole audits: one confidence for all games, files and pictures."""

import json

import pytest
from PIL import Image

from armijo.accounting.budget import Budget
from armijo.audit.games import Claim, Outcome
from armijo.audit.suite import Audit, draw_audit, run_audit, write_audit

BUDGET = Budget(epsilon=3.0, delta=0.01)
GAMES = ("majority", "outpert-rsgd", "one-run-sgd")


def outcome(name="made up", claimed=1.0, audited=0.5):
    return Outcome(
        name=name,
        claim=Claim(claimed, 1e-5),
        epsilon=audited,
        bound="clopper-pearson",
        confidence=0.99,
        trials=100,
        detail={"true_positives": 3},
    )


def test_games_share_what_may_go_wrong():
    seen = []
    audit = run_audit(
        GAMES,
        budget=BUDGET,
        trials=30,
        confidence=0.94,
        seed=0,
        progress=lambda *words: seen.append(words),
    )
    assert [one.name for one in audit.outcomes] == list(GAMES)
    assert {one.confidence for one in audit.outcomes} == {1 - 0.06 / 3}
    assert [one.claim.epsilon for one in audit.outcomes] == [3.0] * 3
    assert [one.claim.delta for one in audit.outcomes] == [0.0, 0.01, 1e-5]
    assert audit.outcomes[-1].trials == 300
    assert ("majority", 0, 60) in seen and ("majority", 60, 60) in seen
    assert audit.refuted == ()


def test_a_seed_repeats_an_audit_and_names_count_once():
    once = run_audit(["majority"], budget=BUDGET, trials=25, seed=9)
    twice = run_audit(["majority", "majority"], budget=BUDGET, trials=25, seed=9)
    assert once == twice


@pytest.mark.parametrize(
    ("names", "settings", "message"),
    [
        ([], {}, "at least one audit"),
        (["nonprivate"], {}, "Expected audit to be one of"),
        (["majority"], {"trials": 5}, "trials >= 20"),
        (["majority"], {"confidence": 1.0}, "0 < confidence < 1"),
        (["majority"], {"seed": -1}, "seed >= 0"),
    ],
)
def test_what_makes_no_sense_is_refused(names, settings, message):
    with pytest.raises(ValueError, match=message):
        run_audit(names, budget=BUDGET, **{"trials": 20, **settings})


class TestVerdict:
    def test_only_a_bound_above_the_claim_refutes(self):
        for audited, exceeds in ((0.999, False), (1.0, False), (1.001, True)):
            assert outcome(audited=audited).exceeds == exceeds

    def test_the_document_says_claimed_and_audited(self):
        audit = Audit(0.95, None, (outcome(), outcome("bad", audited=2.0)))
        found = json.loads(json.dumps(audit.to_dict(), allow_nan=False))
        assert found["passed"] is False
        assert found["refuted"] == ["bad"]
        assert found["games"][1]["claimed_epsilon"] == 1.0
        assert found["games"][1]["audited_epsilon"] == 2.0
        assert found["games"][0]["true_positives"] == 3


class TestFiles:
    AUDIT = Audit(0.95, 4, (outcome(), outcome("bad", audited=2.0)))

    def test_all_are_written(self, tmp_path):
        write_audit(tmp_path / "new" / "folder", self.AUDIT)
        folder = tmp_path / "new" / "folder"
        assert json.loads((folder / "audit.json").read_text())["seed"] == 4
        with Image.open(folder / "audit.png") as picture:
            assert picture.width > 800
        assert "<svg" in (folder / "audit.svg").read_text()

    def test_the_picture_shows_claim_and_bound_of_every_game(self):
        ax = draw_audit(self.AUDIT).axes[0]
        labels = [label.get_text() for label in ax.get_yticklabels()]
        assert [label.split()[0] for label in labels] == ["bad", "made"]
        widths = sorted(bar.get_width() for bar in ax.patches)
        assert widths == [0.5, 2.0]
        colors = {bar.get_width(): bar.get_facecolor() for bar in ax.patches}
        assert colors[0.5] != colors[2.0]
        assert list(ax.lines[0].get_xdata()) == [1.0, 1.0]
