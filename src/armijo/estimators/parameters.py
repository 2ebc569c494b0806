# SPDX-License-Identifier: Apache-2.0
"""Every parameter of the private linear classifiers, in one place."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sklearn.base import BaseEstimator

from armijo.accounting.budget import Budget, as_budget
from armijo.estimators.run import Callback
from armijo.methods.base import Method
from armijo.objectives.losses import Loss

_DEFAULTS = {"epsilon": 1.0, "delta": 1e-5}


class MethodParameters(BaseEstimator):
    """Parameters of a private fit.

    Parameters
    ----------
    epsilon, delta : float
        The (epsilon, delta) of the guarantee of one ``fit``; it is also what is
        reported.
    budget : Budget or None
        The same as one object.  With it, ``epsilon`` and ``delta`` keep their defaults.
    method : str or Method
        The algorithm: one of :data:`armijo.registry.METHODS`, or an object with its
        options, such as ``DPSGD(steps=50)``.  "auto" has nothing to set.
    loss : str, Loss or None
        None is the class's own loss; :class:`PrivateLinearSVC` also takes "huber" and
        objects of :class:`armijo.objectives.losses.Loss`.
    options : mapping or None
        Options of a method that is given by its name, listed in docs/methods.md.  One
        that the method does not take is refused by name.
    l2 : float
        Penalty mu.
    fit_intercept : bool
        Whether to fit an intercept (penalized like the weights).
    classes : sequence or None
        The public list of classes; None reads it from the labels, which is a leak and
        warned about.  Labels are errors only where it is None; else a row with another
        label is blank, and one class alone trains like two.
    n_rows : int or None
        The public number of rows.  None takes the number found and reports the
        zero-out relation, under which it is public by definition.
    max_batches : int or None
        Most batches of one fit; None goes on until the budget refuses.
    accounting : {"sound", "paper"}
        "paper" reproduces the printed analysis and gives no guarantee.
    ledger : path or None
        File that remembers every charge; None keeps them in memory.
    random_state : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws batches and noise from the operating system.  Anything else is
        deterministic and voids the guarantee: an integer is the seed itself, the same
        as ``seed`` of :func:`armijo.solve` and :func:`armijo.train`; a generator draws
        one.
    warm_start : bool
        Refused: weights of an earlier fit were paid by another budget.
    callback : callable or None
        Receives each step record; returning True stops the run.
    leaky_diagnostics : bool
        Record exact values of all rows after each batch in ``leaky_diagnostics_``: for
        debugging on public rows.  The guarantee is void and says so everywhere.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        budget: Budget | None = None,
        method: str | Method[Any] = "auto",
        loss: str | Loss | None = None,
        options: Mapping[str, Any] | None = None,
        l2: float = 1e-3,
        fit_intercept: bool = True,
        classes: Sequence[Any] | None = None,
        n_rows: int | None = None,
        max_batches: int | None = 3000,
        accounting: str = "sound",
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        callback: Callback | None = None,
        leaky_diagnostics: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.budget = budget
        self.method = method
        self.loss = loss
        self.options = options
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.n_rows = n_rows
        self.max_batches = max_batches
        self.accounting = accounting
        self.ledger = ledger
        self.random_state = random_state
        self.warm_start = warm_start
        self.callback = callback
        self.leaky_diagnostics = leaky_diagnostics

    def promised_budget(self) -> Budget:
        """Return the budget of a fit, given as one object or as two numbers."""
        numbers = {"epsilon": self.epsilon, "delta": self.delta}
        if self.budget is None:
            return as_budget(None, **numbers)
        budget = as_budget(self.budget)
        if numbers not in (_DEFAULTS, asdict(budget)):
            raise ValueError(
                f"Expected either budget or epsilon and delta, got {budget} with "
                f"epsilon={self.epsilon!r} and delta={self.delta!r}; leave one of them "
                "out. Nothing was spent."
            )
        return budget
