# SPDX-License-Identifier: Apache-2.0
"""Every parameter of the private linear classifiers, in one place."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sklearn.base import BaseEstimator

from armijo.estimators.run import Callback
from armijo.objectives.losses import Loss
from armijo.privacy.budget import Budget, as_budget

COMMON = frozenset(
    """
    epsilon delta budget method loss options l2 fit_intercept classes n_rows
    max_batches accounting ledger random_state warm_start callback
    leaky_diagnostics
    """.split()
)
"""Parameters of every fit; the others belong to methods, and None is their default."""


_DEFAULTS = {"epsilon": 1.0, "delta": 1e-5}


class MethodParameters(BaseEstimator):
    """Parameters of a private fit.

    Those of a method default to None, which is the method's own default.  A parameter
    that the method does not take is refused by name.

    Parameters
    ----------
    epsilon, delta : float
        The (epsilon, delta) of the guarantee of one ``fit``; it is also what is
        reported.
    budget : Budget or None
        The same as one object.  With it, ``epsilon`` and ``delta`` keep their defaults.
    method : str
        The algorithm, of :data:`armijo.registry.METHODS`.  "auto" has nothing to set.
    loss : str, Loss or None
        None is the class's own loss; :class:`PrivateLinearSVC` also takes "huber" and
        objects of :class:`armijo.objectives.losses.Loss`.
    options : mapping or None
        Further parameters of the method by name, listed in docs/methods.md.
    rate : float
        Sampling ratio q.
    steps, step_size, noise_multiplier : int, float, float
        Number of steps, learning rate and fixed noise of methods that have them.
    feature_norm : float
        Public bound on the norm of a row, for methods whose proof needs one; longer
        rows are scaled down to it, also in prediction.  It is never read from the data.
    variant : str
        Which form of a method that has several.
    expected_steps : int or None
        Solve the per-step budgets so that about this many steps use up the budget;
        None takes the paper's epsilon / 100 per step.
    gradient_rho, search_epsilon : float or None
        Per-step budgets, if not solved.
    grad_clip, loss_clip : float
        C_grad and C_obj.
    step_max, shrink, slope, max_tries : float, float, float, int
        eta_0, beta, plain alpha and max_it of the search.
    search : {"laplace", "gaussian"}
        Noise of the search.
    search_form : {"loss", "difference"}
        Clip losses as printed, or their difference.
    subtract_noise : bool
        Subtract the public noise energy in the Armijo term.
    armijo : {"scaled", "literal"}
        Scale of the Armijo term.
    budget_growth, adapt : float, {"angle", "always", "never"}
        xi, and when the gradient budget grows.
    angle_decay, angle_high, angle_low : float
        psi, phi_max, phi_min.
    refresh_every, headroom : int, float
        tau and varsigma.
    clip_decay : float
        zeta of "blsgd-ac".
    average : {"plain", "weighted"}
        How a retry averages directions.
    tail_mean : bool
        Whether the model is a mean of late iterates instead of the last one ("auto" and
        the line searches).
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
        method: str = "auto",
        loss: str | Loss | None = None,
        rate: float | None = None,
        expected_steps: int | None = None,
        steps: int | None = None,
        step_size: float | None = None,
        noise_multiplier: float | None = None,
        feature_norm: float | None = None,
        variant: str | None = None,
        options: Mapping[str, Any] | None = None,
        gradient_rho: float | None = None,
        search_epsilon: float | None = None,
        grad_clip: float | None = None,
        loss_clip: float | None = None,
        step_max: float | None = None,
        shrink: float | None = None,
        slope: float | None = None,
        max_tries: int | None = None,
        search: str | None = None,
        search_form: str | None = None,
        subtract_noise: bool | None = None,
        armijo: str | None = None,
        budget_growth: float | None = None,
        adapt: str | None = None,
        angle_decay: float | None = None,
        angle_high: float | None = None,
        angle_low: float | None = None,
        refresh_every: int | None = None,
        headroom: float | None = None,
        clip_decay: float | None = None,
        average: str | None = None,
        tail_mean: bool | None = None,
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
        self.rate = rate
        self.expected_steps = expected_steps
        self.steps = steps
        self.step_size = step_size
        self.noise_multiplier = noise_multiplier
        self.feature_norm = feature_norm
        self.variant = variant
        self.options = options
        self.gradient_rho = gradient_rho
        self.search_epsilon = search_epsilon
        self.grad_clip = grad_clip
        self.loss_clip = loss_clip
        self.step_max = step_max
        self.shrink = shrink
        self.slope = slope
        self.max_tries = max_tries
        self.search = search
        self.search_form = search_form
        self.subtract_noise = subtract_noise
        self.armijo = armijo
        self.budget_growth = budget_growth
        self.adapt = adapt
        self.angle_decay = angle_decay
        self.angle_high = angle_high
        self.angle_low = angle_low
        self.refresh_every = refresh_every
        self.headroom = headroom
        self.clip_decay = clip_decay
        self.average = average
        self.tail_mean = tail_mean
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

    def method_parameters(self) -> dict[str, Any]:
        """Return what was asked of the method: flat parameters and ``options``."""
        flat = {
            name: value
            for name, value in self.get_params(deep=False).items()
            if name not in COMMON and value is not None
        }
        options = dict(self.options or {})
        twice = sorted(flat.keys() & options.keys())
        if twice:
            raise ValueError(
                f"Expected each parameter once, got {', '.join(twice)} both as a "
                "parameter and in options; leave one out. Nothing was spent."
            )
        return {**flat, **options}
