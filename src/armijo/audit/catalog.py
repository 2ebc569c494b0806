# SPDX-License-Identifier: Apache-2.0
"""All audits by name: settings under which one row is as visible as it can be.

Methods that clip gradients get short steps, so that a row which is clipped at the start
is clipped to the end; methods whose rows are bounded get a loss that is linear around
zero.  Sampling rates of one half go through amplification, rates of one make the run a
single Gaussian, for which the tighter bound holds.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from armijo import _validate
from armijo.accounting.budget import Budget, Neighboring
from armijo.audit.games import Game
from armijo.audit.networks import ATTACKS, NetworkGame
from armijo.audit.one_run import DELTA, TRAINERS, OneRun
from armijo.audit.runs import RunGame, Table
from armijo.audit.searches import SearchGame
from armijo.audit.support import SupportGame
from armijo.methods.base import Method
from armijo.objectives.linear import LinearObjective
from armijo.registry import LINEAR, make_method, parameters_of

FAR = 10.0
"""The feature of the row that stays: its gradient is longer than every clip."""

FARTHER = 3 * FAR
"""The feature of the row in question: unclipped, it would outweigh the other."""

SHORT = 1e-6
"""A step that changes no gradient."""

_SEARCHED: dict[str, Any] = {
    "expected_steps": 2,
    "max_grad_norm": 1.0,
    "search_form": "difference",
    "max_tries": 2,
    "initial_step": SHORT,
}
_BOUNDED: dict[str, Any] = {"data_norm": 1.0}
RUNS: dict[str, dict[str, Any]] = {
    "blsgd": {**_SEARCHED, "sampling_prob": 0.5},
    "blsgd-ac": {**_SEARCHED, "sampling_prob": 0.5},
    "blgd": _SEARCHED,
    "auto": {"steps": 1, "data_norm": FAR},
    # Every step takes the loss of a row to nothing or to the clip.
    "agd": {"splits": 2, "initial_step": 1.0, "max_grad_norm": 1.0, "loss_clip": 1.0},
    "sgd": {"sampling_prob": 0.5, "steps": 2, "step_size": SHORT, "max_grad_norm": 1.0},
    # An eps far above every gradient makes Adam linear in them.
    "adam": {"sampling_prob": 1.0, "steps": 2, "max_grad_norm": 1.0, "eps": 1 / SHORT},
    "outpert-rsgd": {**_BOUNDED, "epochs": 1, "batch_size": 1},
    "outpert-gd": {**_BOUNDED, "steps": 1},
    "objpert": _BOUNDED,
    "objpert-kst": _BOUNDED,
    "objpert-pure": _BOUNDED,
    "amp": _BOUNDED,
    "privgene": {"steps": 1},
    "hyfree": {
        "sampling_prob": 1.0,
        "steps": 2,
        "reset_every": 1,
        "step_size": SHORT,
        "stability": SHORT,
        "variant": "sgd",
    },
    "sgd-tuned": {
        "sampling_prob": 1.0,
        "steps": 1,
        "step_sizes": (SHORT,),
        "grad_clips": (1.0,),
        "repetitions": 1.5,
    },
    "majority": {},
}
"""Parameters of methods in their games; others have their defaults there."""

PRIVATE = tuple(name for name, entry in LINEAR.items() if entry.kind.private)
"""The methods that promise something."""

GAUSSIAN = frozenset({"auto", "adam", "outpert-gd", "hyfree"})
"""Runs that are one Gaussian release: on all rows, with Gaussian noise only."""

PURE = frozenset({"objpert-pure", "majority"})
"""Runs that do not use delta."""


def run_game(
    method: str, budget: Budget, changed: Mapping[str, Any] | None = None
) -> RunGame:
    """Return the game of whole runs of a method, some of its parameters changed."""
    _validate.choice(PRIVATE, method=method)
    bounded = _BOUNDED if "data_norm" in parameters_of(method) else {}
    usual = RUNS.get(method, bounded)
    settings = make_method(method, {**usual, **(changed or {})})
    return RunGame(
        name=method,
        budget=budget,
        objective=LinearObjective(
            loss="huber" if settings.smooth else "logistic",
            n_features=1,
            fit_intercept=method == "majority",
            l2=1e-3 if settings.smooth else 0.0,
        ),
        settings=settings,
        tables=_votes() if method == "majority" else _tables(settings),
        gaussian=method in GAUSSIAN,
        pure=method in PURE,
    )


def _tables(settings: Method[Any]) -> tuple[Table, Table]:
    """Return one row, and the same with a row that pulls the other way.

    Where rows are exchanged, it is exchanged for one that pulls along.  Where they are
    sampled, there is no other row: whether that was drawn would only blur the sums.
    """
    if settings.relation is Neighboring.REPLACE_ONE:
        return _table([[-FAR], [-FARTHER]]), _table([[-FAR], [FARTHER]])
    if getattr(settings, "sampling_prob", 1.0) < 1:
        return _table([]), _table([[FARTHER]])
    return _table([[-FAR]]), _table([[-FAR], [FARTHER]])


def _table(rows: list[list[float]]) -> Table:
    """Return rows of the first class."""
    return np.reshape(rows, (-1, 1)).astype(float), np.ones(len(rows))


def _votes() -> tuple[Table, Table]:
    """Return one vote, and the same with a vote for the other class."""
    return (np.zeros((1, 1)), -np.ones(1)), (np.zeros((2, 1)), np.array([-1.0, 1.0]))


def step_game(budget: Budget) -> RunGame:
    """Return the game of one DP-BLSGD step: gradient and search on one batch."""
    whole = run_game("blsgd", budget, {"expected_steps": 1})
    return replace(whole, name="step", most_batches=1)


GAMES: dict[str, Callable[[Budget], Game]] = {
    "search-laplace": lambda budget: SearchGame(kind="laplace", budget=budget),
    "search-gaussian": lambda budget: SearchGame(kind="gaussian", budget=budget),
    "support": SupportGame,
    **{name: partial(NetworkGame, name) for name in ATTACKS},
    "step": step_game,
    **{method: partial(run_game, method) for method in PRIVATE},
}
"""Two-dataset games by name."""

AUDITS = (*GAMES, *(f"one-run-{model}" for model in TRAINERS))
"""Names of all audits."""


def one_run(name: str, epsilon: float) -> OneRun:
    """Return the audit of one model by its name."""
    budget = Budget(epsilon=epsilon, delta=DELTA)
    return OneRun(model=name.removeprefix("one-run-"), budget=budget)
