# SPDX-License-Identifier: Apache-2.0
"""The shell that private linear classifiers share."""

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from armijo import _validate
from armijo.accounting.accountants import PrivacyStatement
from armijo.accounting.budget import Neighboring
from armijo.data.query import clipped_rows
from armijo.estimators.labels import for_loss, positions, refuse_other_type
from armijo.estimators.leaks import warn_of_leaks
from armijo.estimators.leaky import LeakyDiagnostics
from armijo.estimators.parameters import MethodParameters
from armijo.estimators.plotting import plot_history
from armijo.estimators.run import RunResult, RunSettings, check, train
from armijo.methods.base import StepRecord
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.objectives.losses import Loss
from armijo.randomness import as_seed
from armijo.registry import make_method


class PrivateLinearClassifier(ClassifierMixin, MethodParameters):
    """Base of the private linear classifiers.

    Parameters are those of
    :class:`armijo.estimators.parameters.MethodParameters`.

    Attributes
    ----------
    coef_, intercept_, classes_ : arrays
        The model.
    privacy_ : PrivacyStatement
        Guarantee, relation, accountant and ledger; ``privacy_.epsilon`` and
        ``privacy_.delta`` are those of the guarantee.
    history_ : DataFrame
        One row of released values for each batch.
    n_iter_ : int
        Number of batches.
    data_norm_ : float or None
        The norm to which rows are scaled down before a score, if the method did so.
    """

    _losses: ClassVar[tuple[str, ...]] = ()
    _any_loss: ClassVar[bool] = False
    _multi_class: ClassVar[bool] = False

    def fit(self, X: Any, y: Any) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : array, CSR matrix or memmap of shape (n_samples, n_features)
            Features, used as they are: scale them by *public* bounds.
        y : array of shape (n_samples,)
            Labels.  With declared ``classes``, a row with another label or a feature
            that is not finite is blank: it adds nothing to any sum, and nothing tells
            of it.  :func:`armijo.estimators.labels.unknown_rows` names such labels to
            the owner of the rows.

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
            Written at the start, every few seconds and when the run ends.  The ledger
            lies beside it (its name and ``.ledger``) if the estimator names none, and
            the secret key of the run until the run has ended.
        fingerprint : mapping or None
            Public JSON values that ledger and checkpoint must share with the run.
        resume : bool
            Whether to go on from the checkpoint and the ledger.

        Returns
        -------
        self
        """
        # What an earlier fit leaked must not lie beside the promise of this one.
        self.__dict__.pop("leaky_diagnostics_", None)
        X, y, settings = self._prepared(X, y)
        settings = replace(settings, checkpoint=checkpoint, fingerprint=fingerprint)
        warn_of_leaks(
            classes_read=self.classes is None,
            accounting=settings.accounting,
            leaky=self.leaky_diagnostics,
        )
        labels = self._encoded(y)
        watch = None
        if self.leaky_diagnostics:
            bound = settings.method.prediction_norm
            watch = LeakyDiagnostics(X, labels, settings.objective, bound)
        result = train(
            X, labels, settings, callback=self.callback, watch=watch, resume=resume
        )
        self._keep(result, settings)
        if watch is not None:
            self.leaky_diagnostics_ = watch.table()
        return self

    def check_fit(self, X: Any, y: Any) -> Self:
        """Raise what :meth:`fit` would raise before its first batch; write nothing."""
        check(self._prepared(X, y)[2])
        return self

    def _prepared(self, X: Any, y: Any) -> tuple[Any, Any, RunSettings]:
        """Check data and parameters; return arrays and settings of the run.

        Where the classes are declared only types and shapes are looked at.
        """
        self._refuse_warm_start()
        given: dict[str, Any] = {
            "accept_sparse": "csr",
            "dtype": [np.float64, np.float32],
            "order": None,
            "copy": False,
        }
        if self.classes is None:
            X, y = validate_data(self, X, y, **given)
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        else:
            X = validate_data(self, X, **given, ensure_all_finite=False)
            y = column_or_1d(y, warn=True)
            check_consistent_length(X, y)
            self.classes_ = np.unique(np.asarray(self.classes))
            refuse_other_type(y, self.classes_)
        self._refuse_classes()
        return X, y, self._settings(self.classes_, X.shape[0])

    def _keep(self, result: RunResult, settings: RunSettings) -> None:
        """Store the fitted attributes."""
        weights = result.w.reshape(settings.objective.outputs, -1)
        self.coef_ = weights[:, : settings.objective.n_features].copy()
        self.intercept_ = np.zeros(len(weights))
        if self.fit_intercept:
            self.intercept_ = weights[:, -1].copy()
        self.privacy_ = PrivacyStatement.of(result.accountant)
        names = [field.name for field in fields(StepRecord)]
        records = [record.to_dict() for record in result.records]
        self.history_ = pd.DataFrame(records, columns=names)
        self.n_iter_ = len(result.records)
        self.data_norm_ = settings.method.prediction_norm

    def _refuse_warm_start(self) -> None:
        """Say why a warm start cannot be had."""
        if self.warm_start:
            raise ValueError(
                "Expected warm_start=False, got True; the earlier weights were paid "
                "from another budget, so the promise of this fit would not cover "
                "them. Fit anew, or give one fit the whole budget."
            )

    def _refuse_classes(self) -> None:
        """Refuse a number of classes that cannot be learned."""
        if len(self.classes_) < 2:
            where = "the labels" if self.classes is None else "classes="
            raise ValueError(
                f"Expected at least two classes in {where}, got "
                f"{self.classes_.tolist()}; a classifier cannot learn from one class. "
                "Nothing was spent."
            )
        if len(self.classes_) > 2 and not self._multi_class:
            raise ValueError(
                "Only binary classification is supported. The type of the target is "
                f"multiclass with {len(self.classes_)} classes; use "
                "PrivateLogisticRegression."
            )

    def _encoded(self, y: NDArray[Any]) -> NDArray[Any]:
        """Return labels as the loss takes them; unknown ones are left out by it."""
        return for_loss(positions(y, self.classes_), len(self.classes_))

    def _objective(self, n_classes: int, *, smooth: bool) -> LinearObjective:
        """Return the objective of the chosen loss."""
        loss = self._losses[0] if self.loss is None else self.loss
        if not (self._any_loss and isinstance(loss, Loss)):
            _validate.choice(self._losses, loss=loss)
        objective = LinearObjective(
            loss=SOFTMAX if n_classes > 2 else loss,
            n_features=self.n_features_in_,
            n_classes=n_classes,
            fit_intercept=self.fit_intercept,
            l2=self.l2,
        )
        return objective.smoothed() if smooth else objective

    def _settings(self, classes: NDArray[Any], found_rows: int) -> RunSettings:
        """Gather the public settings of the run."""
        known = None if self.n_rows is None else _validate.row_count(self.n_rows)
        method = make_method(self.method, self.options)
        return RunSettings(
            budget=self.promised_budget(),
            objective=self._objective(len(classes), smooth=method.smooth),
            method=method,
            n_rows=found_rows if known is None else known,
            relation=Neighboring.ZERO_OUT if known is None else Neighboring.ADD_REMOVE,
            accounting=self.accounting,  # type: ignore[arg-type]
            max_batches=self.max_batches,
            seed=as_seed(self.random_state, name="random_state"),
            ledger=self.ledger,
            leaky_diagnostics=self.leaky_diagnostics,
        )

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return scores: one for each row, or one for each row and class."""
        check_is_fitted(self)
        X = validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False
        )
        X = clipped_rows(X, self.data_norm_)
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
