# SPDX-License-Identifier: Apache-2.0
"""Every private method has a game, and rows move its queries as far as they may."""

import numpy as np
import pytest

from armijo.accounting.budget import Budget, Neighboring
from armijo.audit.games import play_game, randomness_of
from armijo.audit.suite import AUDITS
from armijo.audit.targets import GAMES, GAUSSIAN, PURE, RUNS, RunGame, run_game
from armijo.registry import METHODS, make_method

BUDGET = Budget(epsilon=2.0, delta=0.05)
QUICK = (
    "search-gaussian",
    "support",
    "network-norms",
    "network-cancelling",
    "network-contents",
    "person",
    "images",
    "step",
    "agd",
    "outpert-rsgd",
    "objpert-pure",
    "majority",
)


def released(game, present, trials, seed=0):
    return np.array([game.play(present, randomness_of(seed, k)) for k in range(trials)])


def test_every_private_method_is_audited():
    private = {name for name in METHODS if name != "nonprivate"}
    assert "support" in AUDITS
    assert set(AUDITS) >= private | {
        "search-laplace",
        "search-gaussian",
        "support",
        "network-norms",
        "network-cancelling",
        "network-contents",
        "step",
    }
    assert "nonprivate" not in AUDITS
    assert set(RUNS) == private, "settings that make the game of a method telling"
    assert {name for name in AUDITS if name not in GAMES} == {
        "one-run-sgd",
        "one-run-auto",
        "one-run-network",
        "one-run-network-auto",
        "one-run-network-blsgd",
        "one-run-images",
    }


@pytest.mark.parametrize("name", RUNS)
def test_the_tables_are_neighbors_under_the_relation_of_the_method(name):
    game = run_game(name, BUDGET)
    (fewer, _), (more, _) = game.tables
    if game.settings.relation is Neighboring.REPLACE_ONE:
        assert len(fewer) == len(more) == game.n_rows
        assert np.sum(np.any(fewer != more, axis=1)) == 1
    else:
        assert len(fewer) + 1 == len(more) == game.n_rows
        assert (fewer == more[:-1]).all()


@pytest.mark.parametrize("name", QUICK)
def test_a_game_releases_vectors_of_one_length(name):
    game = GAMES[name](BUDGET)
    assert game.name == name
    assert game.claim.epsilon == BUDGET.epsilon
    for present in (False, True):
        found = released(game, present, 6)
        assert np.isfinite(found).all()
    assert (found == released(game, True, 6)).all()
    assert (found != released(game, True, 6, seed=1)).any()


def test_claims_say_what_their_methods_promise():
    for name in RUNS:
        claim = run_game(name, BUDGET).claim
        assert claim.delta == (0.0 if name in PURE else BUDGET.delta)
        assert claim.gaussian == (name in GAUSSIAN)


@pytest.mark.parametrize("name", sorted(GAUSSIAN - {"outpert-gd"}))
def test_gaussian_claims_are_runs_on_all_rows_with_gaussian_noise_only(name):
    """The label that allows the tighter bound, by the mechanisms that are charged."""
    game = run_game(name, BUDGET)
    kinds = {str(type(part).__name__) for part in _mechanisms(game)}
    assert kinds == {"Gaussian"}


def _mechanisms(game: RunGame):
    for charge, _ in game._method.schedule():
        assert charge.sampling_prob == 1
        inner = charge.inner
        yield from getattr(inner, "mechanisms", (inner,))


def test_the_row_moves_a_gradient_by_its_whole_sensitivity():
    """With hardly any noise the sums themselves are seen: one clip apart."""
    budget = Budget(epsilon=1e6, delta=0.5)
    game = run_game("sgd", budget, {"sampling_prob": 1.0, "steps": 1})
    size = game.settings.step_size * game.settings.max_grad_norm / game.n_rows
    ends = [released(game, present, 1)[0, 7] / size for present in (False, True)]
    assert ends[0] == pytest.approx(-1, abs=0.01)
    assert ends[1] == pytest.approx(0, abs=0.01)


def test_the_row_moves_every_query_of_the_search_by_its_whole_bound():
    """Without the row all are near the threshold; with it only the last passes."""
    game = GAMES["search-gaussian"](Budget(epsilon=60.0, delta=0.05))
    without, present = released(game, False, 100), released(game, True, 100)
    assert present.mean(axis=0)[2] > 0.95
    assert 0.2 < without.mean(axis=0)[0] < 0.6


def test_the_row_moves_every_output_perturbation_as_far_as_is_reckoned():
    game = run_game("outpert-gd", Budget(epsilon=1e6, delta=0.5))
    ends = [released(game, present, 1)[0, 7] for present in (False, True)]
    moved = abs(ends[1] - ends[0])
    assert moved == pytest.approx(game._method.mechanism.sensitivity, rel=0.02)


@pytest.mark.parametrize("name", ["objpert", "majority"])
def test_a_method_without_settings_of_its_own_is_audited_with_its_defaults(
    name, monkeypatch
):
    monkeypatch.delitem(RUNS, name)
    assert np.isfinite(released(run_game(name, BUDGET), True, 2)).all()


def test_foreign_methods_are_refused():
    with pytest.raises(ValueError, match="Expected method to be one of"):
        run_game("nonprivate", BUDGET)
    assert not make_method("nonprivate", {}).private


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_what_the_package_releases_is_not_refuted(name):
    outcome = play_game(GAMES[name](BUDGET), trials=600, confidence=0.999, seed=5)
    assert not outcome.exceeds


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(GAUSSIAN))
def test_gaussian_games_come_near_to_their_claim(name):
    """Else the game would be too weak to catch anything."""
    outcome = play_game(GAMES[name](BUDGET), trials=1500, confidence=0.95, seed=6)
    assert 0.4 * BUDGET.epsilon < outcome.epsilon <= BUDGET.epsilon
