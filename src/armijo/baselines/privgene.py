# SPDX-License-Identifier: Apache-2.0
"""PrivGene: a model is improved by selecting among random or neighboring ones.

Zhang, Xiao, Yang, Zhang and Winslett (2013); no gradient is needed.  The simplified
form of Lee and Kifer (2018) stands in :mod:`armijo.baselines.privgene_simplified`, the
original with a population in :mod:`armijo.baselines.privgene_original`.

Features are meant to lie in [0, 1]; the guarantee holds without that (see
:mod:`armijo.baselines.fitness`).
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from armijo import _validate
from armijo.baselines.fitness import Fitness
from armijo.baselines.privgene_original import PrivGeneOriginal
from armijo.baselines.privgene_simplified import PrivGeneSimplified
from armijo.baselines.selection import (
    SELECTION_RULES,
    SelectionRule,
    affordable_epsilon,
    concentrated_rho,
    selection_epsilon,
)
from armijo.methods.base import Schedule
from armijo.methods.problem import MethodSettings, Problem
from armijo.privacy.budget import Neighboring
from armijo.privacy.mechanisms import NoisyMax

ROWS_PER_GENERATION = 800
"""Lee and Kifer's script makes ``n epsilon / 800`` generations."""


@dataclass(frozen=True, kw_only=True)
class PrivGeneSettings(MethodSettings):
    """Public settings of PrivGene.

    Attributes
    ----------
    variant : {"simplified", "original"}
        Coordinate moves, or a population with crossover and mutation.
    steps : int or None
        Number of generations; None is ``n_rows epsilon / 800``, at least one.
    step_size, step_decay : float
        Size of the first mutation and the factor by which it shrinks.
    exchange : bool
        Take one exchanged row as the difference between neighbors, as Lee and Kifer
        do: twice the Gamma, and the replace-one relation.
    selection : {"bounded", "pure"}
        Solve the epsilon of a selection for the whole budget by its bounded range, or
        take the printed ``sqrt(2 rho / steps)`` of pure DP.  Charged is the bounded
        range either way, so that "pure" uses less than half of the budget.
    penalty : float or None
        Weight of ``||w||^2 / 2`` (without the intercept) beside the *summed* loss;
        None is 0 for the logistic loss and 1/10 for a hinge, the printed
        ``10 sum(hinge) + ||w||^2 / 2``.  The objective's ``l2`` is not selected by.
    population_size, parents, population_seed : int or None
        Of the original form only: candidates, how many of them are selected in a
        generation, and the seed of crossover and mutation, which protect nothing and
        are therefore public; None is 200, 10 and 0.
    """

    multi_class: ClassVar[bool] = False

    variant: Literal["simplified", "original"] = "simplified"
    steps: int | None = None
    step_size: float = 0.5
    step_decay: float = 0.95
    exchange: bool = False
    selection: SelectionRule = "bounded"
    penalty: float | None = None
    population_size: int | None = None
    parents: int | None = None
    population_seed: int | None = None

    def __post_init__(self) -> None:
        """Check the settings."""
        _validate.choice(("simplified", "original"), variant=self.variant)
        _validate.choice(SELECTION_RULES, selection=self.selection)
        _validate.positive(step_size=self.step_size)
        _validate.rate(step_decay=self.step_decay)
        if not isinstance(self.exchange, bool):
            raise ValueError(
                f"Expected exchange to be True or False, got {self.exchange!r}."
            )
        if self.steps is not None:
            _validate.at_least(1, steps=self.steps)
        if self.penalty is not None:
            _validate.non_negative(penalty=self.penalty)
        self._check_population()

    def _check_population(self) -> None:
        """Check what only the original form takes."""
        least = {"population_size": 2, "parents": 1, "population_seed": 0}
        given = {n: getattr(self, n) for n in least if getattr(self, n) is not None}
        if given and self.variant == "simplified":
            raise ValueError(
                f"Expected variant='original' with {', '.join(given)}, got "
                "'simplified', which has no population; leave them out."
            )
        for name, value in given.items():
            _validate.at_least(least[name], **{name: value})
        if self._parents > self._population_size:
            raise ValueError(
                f"Expected parents <= population_size, got {self._parents} of "
                f"{self._population_size}; select fewer."
            )

    @property
    def _parents(self) -> int:
        """How many are selected in a generation of the original form."""
        return 10 if self.parents is None else self.parents

    @property
    def _population_size(self) -> int:
        """How many there are to select from."""
        return 200 if self.population_size is None else self.population_size

    @property
    def relation(self) -> Neighboring | None:
        """Replace-one where rows are exchanged, else the run's own."""
        return Neighboring.REPLACE_ONE if self.exchange else None

    def build(self, problem: Problem) -> PrivGeneSimplified | PrivGeneOriginal:
        """Return PrivGene with the epsilon of its selections."""
        expected = problem.n_rows * problem.budget.epsilon / ROWS_PER_GENERATION
        steps = max(1, round(expected)) if self.steps is None else self.steps
        rho = concentrated_rho(problem.budget) / steps
        epsilon = selection_epsilon(rho, self.selection)
        if self.selection == "bounded":
            epsilon = affordable_epsilon(
                problem.budget,
                lambda trial: self._draws(steps, trial),
                epsilon,
            )
        return self._made(problem, steps, epsilon)

    def _draws(self, steps: int, epsilon: float) -> Schedule:
        """Return all draws of a run, whatever batches they are made on."""
        last = NoisyMax(epsilon)
        if self.variant == "simplified":
            return ((last, steps),)
        shared = NoisyMax(self._share(epsilon))
        first = ((shared, (steps - 1) * self._parents),) if steps > 1 else ()
        return (*first, (last, 1))

    def _share(self, epsilon: float) -> float:
        """Return what one parent's draw gets of a generation: rho is shared evenly."""
        return epsilon / math.sqrt(self._parents)

    def _made(
        self, problem: Problem, steps: int, epsilon: float
    ) -> PrivGeneSimplified | PrivGeneOriginal:
        """Return the algorithm whose last selection has the given epsilon."""
        objective = problem.objective
        penalty = self.penalty
        if penalty is None:
            penalty = 0.0 if objective.loss == "logistic" else 0.1
        sensitivity = 2.0 if self.exchange else 1.0
        shared: dict[str, Any] = {
            "steps": steps,
            "step_size": self.step_size,
            "step_decay": self.step_decay,
            "selection": NoisyMax(epsilon, sensitivity),
            "fitness": Fitness(
                penalty=penalty,
                n_rows=problem.n_rows,
                fit_intercept=objective.fit_intercept,
            ),
        }
        if self.variant == "simplified":
            return PrivGeneSimplified(**shared)
        return PrivGeneOriginal(
            **shared,
            draw=NoisyMax(self._share(epsilon), sensitivity),
            parents=self._parents,
            population_size=self._population_size,
            population_seed=self.population_seed or 0,
        )
