# SPDX-License-Identifier: Apache-2.0
"""Coded tables for tests, and every question that a run of the additive method asks."""

from functools import cache

import numpy as np

from armijo.accounting.budget import Budget, Neighboring
from armijo.data.coded import CategoryColumn, CodedRows, CodedTable, NumericColumn
from armijo.data.gate import PrivateDataset
from armijo.data.query import Rows
from armijo.methods.additive import Additive
from armijo.methods.base import Problem
from armijo.objectives.additive import AdditiveObjective
from armijo.randomness import Randomness
from armijo.training.run import accountant_for

BUDGET = Budget(epsilon=2.0, delta=1e-6)
COLUMNS = (
    NumericColumn(name="age", low=0.0, high=100.0),
    NumericColumn(name="income"),
    NumericColumn(name="balance", low=-1.0),
    CategoryColumn(name="sex", n_levels=2),
    CategoryColumn(name="town", n_levels=40),
)
LOSSES = ("logistic", "softmax", "squared", "huber")


def objective_of(loss="logistic", columns=COLUMNS, **settings):
    classes = {"n_classes": 3} if loss == "softmax" else {}
    return AdditiveObjective(columns=columns, loss=loss, **classes, **settings)


def labels_of(loss, score, rng):
    """Return labels or targets that follow a score."""
    noisy = score + rng.normal(size=len(score))
    if loss == "logistic":
        return np.where(noisy > 0, 1.0, -1.0)
    if loss == "softmax":
        return (noisy > -0.7).astype(float) + (noisy > 0.7)
    return 50 + 20 * noisy


def table_of(rows, loss="logistic", seed=0):
    """Return a table with all kinds of columns, and labels."""
    rng = np.random.default_rng(seed)
    age = rng.uniform(0, 100, rows).round()
    income = np.exp(rng.normal(10, 1, rows))
    income[rng.random(rows) < 0.1] = np.nan
    balance = np.where(rng.random(rows) < 0.3, 0.0, rng.normal(0, 500, rows))
    sex = rng.integers(-1, 2, rows)
    town = np.minimum(rng.geometric(0.15, rows) - 1, 39)
    score = (age - 50) / 30 + (sex == 1) - 0.5
    table = CodedTable(COLUMNS, (age, income, balance, sex, town))
    return table, labels_of(loss, score, rng)


class Spied:
    """A batch that writes down what it is asked."""

    def __init__(self, batch, asked, kind):
        self._batch, self._asked, self._kind = batch, asked, kind
        self.expected_size = batch.expected_size

    def noisy_sum(self, query, mechanism):
        self._asked.append((self._kind, query, mechanism))
        return self._batch.noisy_sum(query, mechanism)


def released(
    table, y, objective, *, weight=None, budget=BUDGET, seed=0, stop=None, **settings
):
    """Run the additive method; return method, last state and all queries."""
    method = Additive(**settings)
    problem = Problem(objective=objective, n_rows=max(len(table), 1))
    method = method.calibrate(budget, problem)
    state = method.init(objective.start())
    accountant = accountant_for(
        method,
        state,
        budget,
        relation=Neighboring.ADD_REMOVE,
        insecure_deterministic=True,
    )
    data = PrivateDataset(
        CodedRows(table, y, weight),
        n_rows=problem.n_rows,
        accountant=accountant,
        randomness=Randomness(seed=seed, insecure_deterministic=True),
    )
    asked = []
    for what in method.batches[:stop]:
        batch = Spied(data.open(method.plan(state)), asked, what)
        state, _ = method.step(batch, objective, state)
    return method, state, asked


@cache
def all_queries(loss="logistic", class_weight=None, rows=900, pairs=True):
    """Return one query of each kind by name, at the values that a run released."""
    table, y = table_of(rows, loss)
    objective = objective_of(loss, class_weight=class_weight)
    _, _, asked = released(table, y, objective, pairs=pairs)
    found = {}
    for what, query, mechanism in asked:
        if what.kind != "step" or what.update == 9 * what.phase:
            name = f"{what.kind} {what.phase} {what.update}"
            if what.kind == "step":
                name += " drops" if f"{name} gradient" in found else " gradient"
            found[name] = query, mechanism
    return found


def sums(queries, table, y, weight=None, bits=40):
    """Return the sums of queries on their lattices, as Python's integers, by name.

    Each on the lattice of so many bits, or on its finest.
    """
    X, y, _ = CodedRows(table, y, weight).take(None)
    rows, found = Rows(X, y), {}
    for name, query in queries.items():
        total = query.contributions(rows)
        whole = total.integers(min(bits, total.finest)).long().tolist()
        found[name] = np.array(whole, dtype=object)
    return found


def inserted(table, y, row, label, place):
    """Return a table with one more row."""
    cells = tuple(
        np.insert(column.astype(float), place, cell)
        for column, cell in zip(table.cells, row, strict=True)
    )
    return CodedTable(table.columns, cells), np.insert(y, place, label)
