# SPDX-License-Identifier: Apache-2.0
"""The shell that private linear classifiers share."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from armijo import _validate
from armijo.estimators.leaks import warn_of_leaks
from armijo.estimators.plotting import plot_history
from armijo.estimators.run import (
    Callback,
    RunResult,
    RunSettings,
    check,
    train,
)
from armijo.estimators.statement import PrivacyStatement
from armijo.objectives.linear import LinearObjective
from armijo.optim.loop import StepRecord
from armijo.optim.methods import LineSearchSettings
from armijo.privacy.budget import Budget, Neighboring
from armijo.search.armijo import ArmijoSearch


class PrivateLinearClassifier(ClassifierMixin, BaseEstimator):
    """Base of the private linear classifiers.

    Parameters
    ----------
    epsilon, delta : float
        The promise of one ``fit``; it is also what is reported.
    method : {"blsgd", "blsgd-ac", "blgd"}
        DP-BLSGD, the same with clip adaptation, or full-batch DP-BLGD.
    loss : str or None
        None is the class's own loss; :class:`PrivateLinearSVC` also takes "huber".
    rate : float
        Sampling ratio q.
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
    l2, huber_width : float
        Penalty mu and half-width of the Huberized hinge.
    fit_intercept : bool
        Whether to fit an intercept (penalized like the weights).
    classes : sequence or None
        The public list of classes; None reads it from the labels, which is a leak and
        warned about.
    n_rows : int or None
        The public number of rows.  None takes the number found and reports the
        zero-out relation, under which it is public by definition.
    max_batches : int or None
        Most batches of one fit; None goes on until the budget refuses.
    accounting : {"sound", "paper"}
        "paper" reproduces the printed analysis and gives no guarantee.
    noise : {"auto", "exact", "fast"}
        How noise on vectors is drawn.
    ledger : path or None
        File that remembers every charge; None keeps them in memory.
    random_state : None, int or RandomState
        None draws from the operating system.  Anything else is deterministic and
        voids the guarantee.
    warm_start : bool
        Refused: weights of an earlier fit were paid by another budget.
    callback : callable or None
        Receives each step record; returning True stops the run.

    Attributes
    ----------
    coef_, intercept_, classes_ : arrays
        The model.
    privacy_ : PrivacyStatement
        Guarantee, relation, accountant and ledger.
    history_ : DataFrame
        One row of released values for each batch.
    n_iter_ : int
        Number of batches.
    """

    _losses: ClassVar[tuple[str, ...]] = ()
    _multi_class: ClassVar[bool] = False

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str = "blsgd",
        loss: str | None = None,
        rate: float = 0.1,
        expected_steps: int | None = None,
        gradient_rho: float | None = None,
        search_epsilon: float | None = None,
        grad_clip: float = 3.0,
        loss_clip: float = 1.0,
        step_max: float = 2.0,
        shrink: float = 0.8,
        slope: float = 0.5,
        max_tries: int = 20,
        search: str = "laplace",
        search_form: str = "loss",
        subtract_noise: bool = False,
        armijo: str = "scaled",
        budget_growth: float = 0.3,
        adapt: str = "angle",
        angle_decay: float = 0.8,
        angle_high: float = 1.1,
        angle_low: float = 0.5,
        refresh_every: int = 10,
        headroom: float = 1.2,
        clip_decay: float = 0.05,
        average: str = "plain",
        l2: float = 1e-3,
        huber_width: float = 0.5,
        fit_intercept: bool = True,
        classes: Sequence[Any] | None = None,
        n_rows: int | None = None,
        max_batches: int | None = 3000,
        accounting: str = "sound",
        noise: str = "auto",
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        warm_start: bool = False,
        callback: Callback | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.loss = loss
        self.rate = rate
        self.expected_steps = expected_steps
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
        self.l2 = l2
        self.huber_width = huber_width
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.n_rows = n_rows
        self.max_batches = max_batches
        self.accounting = accounting
        self.noise = noise
        self.ledger = ledger
        self.random_state = random_state
        self.warm_start = warm_start
        self.callback = callback

    def fit(self, X: Any, y: Any) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : array, CSR matrix or memmap of shape (n_samples, n_features)
            Features, used as they are: scale them by *public* bounds.
        y : array of shape (n_samples,)
            Labels.

        Returns
        -------
        self
        """
        return self.fit_resumable(X, y)

    def fit_resumable(
        self,
        X: Any,
        y: Any,
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        resume: bool = False,
    ) -> Self:
        """Train like :meth:`fit`, with a checkpoint to go on from.

        Parameters
        ----------
        X, y : arrays
            As in :meth:`fit`.
        checkpoint : path or None
            Written at the start, every few seconds and when the run ends.
        fingerprint : mapping or None
            Public JSON values that ledger and checkpoint must share with the run.
        resume : bool
            Whether to go on from the checkpoint and the ledger.

        Returns
        -------
        self
        """
        X, y, settings = self._prepared(X, y)
        settings = replace(settings, checkpoint=checkpoint, fingerprint=fingerprint)
        warn_of_leaks(classes_read=self.classes is None, accounting=settings.accounting)
        labels = self._encoded(y)
        result = train(X, labels, settings, callback=self.callback, resume=resume)
        self._keep(result, settings)
        return self

    def check_fit(self, X: Any, y: Any) -> Self:
        """Raise what :meth:`fit` would raise before its first batch; write nothing."""
        check(self._prepared(X, y)[2])
        return self

    def _prepared(self, X: Any, y: Any) -> tuple[Any, Any, RunSettings]:
        """Check data and parameters; return arrays and settings of the run."""
        self._refuse_warm_start()
        X, y = validate_data(
            self,
            X,
            y,
            accept_sparse="csr",
            dtype=[np.float64, np.float32],
            order=None,
            copy=False,
        )
        check_classification_targets(y)
        return X, y, self._settings(self._public_classes(y), X.shape[0])

    def _keep(self, result: RunResult, settings: RunSettings) -> None:
        """Store the fitted attributes."""
        weights = result.w.reshape(settings.objective.outputs, -1)
        self.coef_ = weights[:, : settings.objective.n_features].copy()
        self.intercept_ = np.zeros(len(weights))
        if self.fit_intercept:
            self.intercept_ = weights[:, -1].copy()
        self.privacy_ = PrivacyStatement.of(result.accountant, str(self.noise))
        names = [field.name for field in fields(StepRecord)]
        records = [record.to_dict() for record in result.records]
        self.history_ = pd.DataFrame(records, columns=names)
        self.n_iter_ = len(result.records)

    def _refuse_warm_start(self) -> None:
        """Say why a warm start cannot be had."""
        if self.warm_start:
            raise ValueError(
                "Expected warm_start=False, got True; the earlier weights were paid "
                "from another budget, so the promise of this fit would not cover "
                "them. Fit anew, or give one fit the whole budget."
            )

    def _public_classes(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return the declared classes, checked against the labels."""
        found = np.unique(y)
        if self.classes is None:
            self.classes_ = found
        else:
            self.classes_ = np.unique(np.asarray(self.classes))
            unknown = np.setdiff1d(found, self.classes_)
            if unknown.size:
                raise ValueError(
                    f"Expected labels from classes={list(self.classes_)}, got "
                    f"{unknown.tolist()}; declare every class. Nothing was spent."
                )
        if len(self.classes_) < 2 or len(found) < 2:
            raise ValueError(
                f"Expected at least two classes in the labels, got {found.tolist()}; "
                "a classifier cannot learn from one class. Nothing was spent."
            )
        if len(self.classes_) > 2 and not self._multi_class:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"multiclass with {len(self.classes_)} classes; use "
                "PrivateLogisticRegression."
            )
        return self.classes_

    def _encoded(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return labels -1 and +1, or class indices for more than two classes."""
        index = np.searchsorted(self.classes_, y)
        if len(self.classes_) == 2:
            return 2.0 * index - 1.0
        return np.asarray(index)

    def _objective(self, n_classes: int) -> LinearObjective:
        """Return the objective of the chosen loss."""
        loss = self._losses[0] if self.loss is None else self.loss
        _validate.choice(self._losses, loss=loss)
        return LinearObjective(
            loss="softmax" if n_classes > 2 else loss,  # type: ignore[arg-type]
            n_features=self.n_features_in_,
            n_classes=n_classes,
            fit_intercept=self.fit_intercept,
            l2=self.l2,
            huber_width=self.huber_width,
        )

    def _settings(self, classes: NDArray[Any], found_rows: int) -> RunSettings:
        """Gather the public settings of the run."""
        seed = None
        if self.random_state is not None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        named = LineSearchSettings.__dataclass_fields__.keys() - {"search"}
        return RunSettings(
            budget=Budget(epsilon=self.epsilon, delta=self.delta),
            objective=self._objective(len(classes)),
            method=LineSearchSettings(
                search=self._search(), **{name: getattr(self, name) for name in named}
            ),
            n_rows=found_rows if self.n_rows is None else self.n_rows,
            relation=(
                Neighboring.ZERO_OUT if self.n_rows is None else Neighboring.ADD_REMOVE
            ),
            accounting=self.accounting,  # type: ignore[arg-type]
            noise=self.noise,  # type: ignore[arg-type]
            max_batches=self.max_batches,
            seed=seed,
            ledger=self.ledger,
        )

    def _search(self) -> ArmijoSearch:
        """Return the line search of the settings."""
        return ArmijoSearch(
            kind=self.search,  # type: ignore[arg-type]
            slope=self.slope,
            shrink=self.shrink,
            max_tries=self.max_tries,
            form=self.search_form,  # type: ignore[arg-type]
            subtract_noise=self.subtract_noise,
            armijo=self.armijo,  # type: ignore[arg-type]
        )

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return scores: one for each row, or one for each row and class."""
        check_is_fitted(self)
        X = validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False
        )
        scores = np.asarray(X @ self.coef_.T + self.intercept_, dtype=np.float64)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row; a score of zero counts as the second class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.asarray(self.classes_[(scores >= 0).astype(int)])
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def plot_history(self, axes: Any = None) -> Any:
        """Draw step size, budget per step and spent epsilon over the batches."""
        check_is_fitted(self)
        return plot_history(self.history_, self.privacy_.guarantee, axes)

    def __sklearn_tags__(self) -> Tags:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # Noise may cost any accuracy on the tiny tables of the estimator checks.
        tags.classifier_tags.poor_score = True
        tags.classifier_tags.multi_class = self._multi_class
        return tags
