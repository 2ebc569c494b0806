# SPDX-License-Identifier: Apache-2.0
"""scikit-learn estimators and one call for researchers, around the one driver.

Once the classes are declared, nothing about a label may show: a job that fails because
of one label tells everybody who sees its exit code.  Only the type of the labels, which
is public, can be wrong; a row without a declared label is a blank row.
"""

import os
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import Tags, check_consistent_length, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from armijo import _validate
from armijo.accounting.accountants import PrivacyStatement
from armijo.accounting.budget import Budget, Guarantee, Neighboring, as_budget
from armijo.data.query import Matrix, clipped_rows
from armijo.data.sources import ArrayRows
from armijo.errors import PrivacyLeakWarning
from armijo.methods.base import Method, StepRecord
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.objectives.losses import Loss
from armijo.plotting import plot_history
from armijo.randomness import Seed, as_seed
from armijo.registry import make_method
from armijo.training.run import Accounting, Callback, Run, RunFiles

__all__ = [
    "PrivacyStatement",
    "PrivateLinearSVC",
    "PrivateLogisticRegression",
    "Solution",
    "solve",
    "unknown_rows",
]

_DEFAULTS = {"epsilon": 1.0, "delta": 1e-5}
UNKNOWN = -1
"""The position of a label that is not among the classes."""


class PrivateLinearClassifier(ClassifierMixin, BaseEstimator):
    """Base of the private linear classifiers.

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
    callback : callable or None
        Receives each step record; returning True stops the run.
    leaky_diagnostics : bool
        Record exact values of all rows after each batch in ``leaky_diagnostics_``: for
        debugging on public rows.  The guarantee is void and says so everywhere.

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

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        budget: Budget | None = None,
        method: str | Method[Any] = "auto",
        loss: str | Loss | None = None,
        l2: float = 1e-3,
        fit_intercept: bool = True,
        classes: Sequence[Any] | None = None,
        n_rows: int | None = None,
        max_batches: int | None = 3000,
        accounting: str = "sound",
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        leaky_diagnostics: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.budget = budget
        self.method = method
        self.loss = loss
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.n_rows = n_rows
        self.max_batches = max_batches
        self.accounting = accounting
        self.ledger = ledger
        self.random_state = random_state
        self.callback = callback
        self.leaky_diagnostics = leaky_diagnostics

    def _budget(self) -> Budget:
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

    def fit(self, X: Any, y: Any) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : array, CSR matrix or memmap of shape (n_samples, n_features)
            Features, used as they are: scale them by *public* bounds.
        y : array of shape (n_samples,)
            Labels.  With declared ``classes``, a row with another label or a feature
            that is not finite is blank: it adds nothing to any sum, and nothing tells
            of it.  :func:`armijo.estimators.unknown_rows` names such labels to
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
        ready: Callable[[], object] | None = None,
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
        ready : callable or None
            Called once all checks have passed, before the first file is made; it may
            make the folder of the checkpoint.

        Returns
        -------
        self
        """
        _validate.function(callback=self.callback)
        _validate.boolean(leaky_diagnostics=self.leaky_diagnostics)
        # What an earlier fit leaked must not lie beside the promise of this one.
        self.__dict__.pop("leaky_diagnostics_", None)
        X, y = self._checked(X, y)
        files = RunFiles(
            ledger=self.ledger,
            checkpoint=checkpoint,
            resume=resume,
            named=fingerprint or {},
            ready=ready,
        )
        warn_of_leaks(
            classes_read=self.classes is None,
            accounting=self.accounting,
            leaky=self.leaky_diagnostics,
        )
        method, objective = self._problem()
        labels = self._encoded(y)
        run = self._run(X, labels, method, objective, files)
        if not self.leaky_diagnostics:
            run.complete(self.callback)
        else:
            exact = LeakyDiagnostics(X, labels, objective, method.prediction_norm)

            def watched(record: StepRecord) -> object:
                exact(record.batch, run.w)
                return None if self.callback is None else self.callback(record)

            run.complete(watched)
            self.leaky_diagnostics_ = exact.table()
        self._keep(run, method, objective)
        return self

    def _run(
        self,
        X: Any,
        labels: NDArray[Any],
        method: Method[Any],
        objective: LinearObjective,
        files: RunFiles,
    ) -> Run:
        """Return the run of a fit, ready for its first batch."""
        known = None if self.n_rows is None else _validate.row_count(self.n_rows)
        return Run(
            objective,
            ArrayRows(X, labels),
            method,
            self._budget(),
            n_rows=X.shape[0] if known is None else known,
            relation=Neighboring.ZERO_OUT if known is None else Neighboring.ADD_REMOVE,
            accounting=self.accounting,  # type: ignore[arg-type]
            max_batches=self.max_batches,
            seed=as_seed(self.random_state, name="random_state"),
            leaky=self.leaky_diagnostics,
            files=files,
        )

    def _checked(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows and labels as arrays, and set the classes.

        Where the classes are declared only types and shapes are looked at.
        """
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
        return X, y

    def _keep(self, run: Run, method: Method[Any], objective: LinearObjective) -> None:
        """Store the fitted attributes."""
        weights = run.w.numpy().copy().reshape(objective.outputs, -1)
        self.coef_ = weights[:, : objective.n_features].copy()
        self.intercept_ = np.zeros(len(weights))
        if self.fit_intercept:
            self.intercept_ = weights[:, -1].copy()
        self.privacy_ = run.privacy
        names = [field.name for field in fields(StepRecord)]
        records = [record.to_dict() for record in run.records]
        self.history_ = pd.DataFrame(records, columns=names)
        self.n_iter_ = len(run.records)
        self.data_norm_ = method.prediction_norm

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

    def _problem(self) -> tuple[Method[Any], LinearObjective]:
        """Return the method and the objective of the chosen loss."""
        method = make_method(self.method)
        loss = self._losses[0] if self.loss is None else self.loss
        if not (self._any_loss and isinstance(loss, Loss)):
            _validate.choice(self._losses, loss=loss)
        objective = LinearObjective(
            loss=SOFTMAX if len(self.classes_) > 2 else loss,
            n_features=self.n_features_in_,
            n_classes=len(self.classes_),
            fit_intercept=self.fit_intercept,
            l2=self.l2,
        )
        return method, objective.smoothed() if method.smooth else objective

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


class PrivateLogisticRegression(PrivateLinearClassifier):
    """Logistic regression under differential privacy, without a learning rate.

    More than two classes are fitted by softmax.  Parameters and attributes are those
    of :class:`PrivateLinearClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.repeat([[0.0, 1.0], [1.0, 0.0]], 500, axis=0)
    >>> y = np.repeat([0, 1], 500)
    >>> model = PrivateLogisticRegression(
    ...     epsilon=2.0, classes=[0, 1], n_rows=1000
    ... )
    >>> model.fit(X, y).score(X, y)
    1.0
    >>> print(model.privacy_.relation)
    add-remove
    """

    _losses: ClassVar[tuple[str, ...]] = ("logistic",)
    _multi_class: ClassVar[bool] = True

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            positive = expit(scores)
            return np.column_stack([1 - positive, positive])
        return np.asarray(softmax(scores, axis=1))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each class."""
        return np.asarray(np.log(self.predict_proba(X)))


class PrivateLinearSVC(PrivateLinearClassifier):
    """Linear support vector machine under differential privacy, for two classes.

    ``loss`` is "hinge", "huber", the hinge rounded at its kink, or any
    :class:`armijo.objectives.losses.Loss`.  Other parameters and attributes are those
    of :class:`PrivateLinearClassifier`.
    """

    _losses: ClassVar[tuple[str, ...]] = ("hinge", "huber")
    _any_loss: ClassVar[bool] = True


def positions(y: NDArray[Any], classes: NDArray[Any]) -> NDArray[np.int64]:
    """Return the position of every label among the sorted classes, or ``UNKNOWN``.

    >>> positions(np.array([1.0, np.nan, 7.0]), np.array([0, 1]))
    array([ 1, -1, -1])
    """
    refuse_other_type(y, classes)
    if y.dtype == object or classes.dtype == object:
        # Objects of any kind: what cannot be looked up is no class.
        index = {value: place for place, value in enumerate(classes.tolist())}
        found = [_looked_up(index, value) for value in y.tolist()]
        return np.array(found, dtype=np.int64)
    places = np.searchsorted(classes, y).clip(max=len(classes) - 1)
    return np.where(classes[places] == y, places, UNKNOWN).astype(np.int64)


def _looked_up(index: dict[Any, int], value: Any) -> int:
    """Return the position of one label; one without a hash has none."""
    try:
        return index.get(value, UNKNOWN)
    except TypeError:
        return UNKNOWN


def refuse_other_type(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse numbers where classes are text, and the other way around."""
    text = [array.dtype.kind in "US" for array in (y, classes)]
    loose = object in (y.dtype, classes.dtype)
    if text[0] != text[1] and not loose:
        raise ValueError(
            f"Expected labels of the type of the classes ({classes.dtype}), got "
            f"{y.dtype}; convert one of them. Nothing was spent."
        )


def for_loss(places: NDArray[np.int64], n_classes: int) -> NDArray[Any]:
    """Return labels -1 and +1, or positions; an unknown one is left out by the loss.

    That is NaN for the losses of a margin and ``UNKNOWN`` for softmax.
    """
    if n_classes > 2:
        return places
    return np.where(places == UNKNOWN, np.nan, 2.0 * places - 1.0)


def unknown_rows(y: Any, classes: Any) -> NDArray[np.int64]:
    """Return the numbers of the rows whose label is not among the classes.

    For the eyes of the owner of the rows, outside of any guarantee: a fit treats such
    rows as blank and says nothing.

    >>> unknown_rows(["yes", "no", "Yes"], classes=["no", "yes"])
    array([2])
    """
    found = positions(np.asarray(y), np.unique(np.asarray(classes)))
    return np.flatnonzero(found == UNKNOWN)


def warn_of_leaks(*, classes_read: bool, accounting: str, leaky: bool) -> None:
    """Warn about leaks that the settings, or the caller, bring with them."""
    if classes_read:
        _warn(
            "The classes were read from the labels, which is not private; pass "
            "classes= from public knowledge."
        )
    if accounting == "paper":
        _warn(
            "accounting='paper' reproduces the printed analysis and gives no valid "
            "guarantee; see privacy_.guarantee.broken_premises."
        )
    if leaky:
        _warn(
            "leaky_diagnostics=True records exact values of the rows: there is no "
            "guarantee. Use it on public or generated rows only."
        )
    if inside_model_selection():
        _warn(
            "A search or cross-validation spends the whole budget once per fit on "
            "overlapping rows, and choosing by its scores is not private; epsilon of "
            "one fit does not cover it."
        )


def _warn(message: str) -> None:
    warnings.warn(message, PrivacyLeakWarning, stacklevel=5)


def inside_model_selection() -> bool:
    """Say whether this fit was called by scikit-learn's model selection."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "sklearn.model_selection._validation":
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


class LeakyDiagnostics:
    """Records exact values of all rows after each batch: NOT private.

    Parameters
    ----------
    X, y : arrays
        The rows, and labels as the objective takes them.
    objective : LinearObjective
        The unclipped objective.
    data_norm : float or None
        The norm to which the method scales rows down.
    """

    def __init__(
        self,
        X: Matrix,
        y: NDArray[Any],
        objective: LinearObjective,
        data_norm: float | None,
    ) -> None:
        y = np.asarray(y)
        known = np.flatnonzero(np.isfinite(y) if objective.outputs == 1 else y >= 0)
        if known.size < len(y):  # blank rows have no loss
            X, y = X[known], y[known]
        self._X, self._y = clipped_rows(X, data_norm), torch.from_numpy(y)
        self._objective = objective
        self._values: list[dict[str, float]] = []

    def __call__(self, batch: int, w: Tensor) -> None:
        """Take the parameters after a batch."""
        objective = self._objective
        scores = objective.scores(w, self._X)
        losses = objective.losses(scores, self._y)
        if objective.outputs == 1:
            right = (scores >= 0) == (self._y > 0)
        else:
            right = scores.argmax(dim=1) == self._y
        self._values.append(
            {
                "batch": batch,
                "leaky_objective": float(losses.mean()) + objective.penalty(w),
                "leaky_accuracy": float(right.double().mean()),
                "leaky_largest_loss": float(losses.max()),
            }
        )

    def table(self) -> pd.DataFrame:
        """Return one row for each batch."""
        names = ("objective", "accuracy", "largest_loss")
        columns = ["batch", *(f"leaky_{name}" for name in names)]
        return pd.DataFrame(self._values, columns=columns)


@dataclass(frozen=True)
class Solution:
    """What a run leaves.

    Attributes
    ----------
    w : array
        Weights, the intercept last (one such row for each class with softmax).
    privacy : PrivacyStatement
        The guarantee, its relation and the charges behind it.
    gradient_evaluations, objective_evaluations : int or None
        Passes over the rows of a batch; None where the number depends on the rows.
    records : tuple of StepRecord
        The released values of each batch.
    data_norm : float or None
        The norm to which rows are to be scaled down before a score.
    """

    w: NDArray[np.float64]
    privacy: PrivacyStatement
    gradient_evaluations: int | None
    objective_evaluations: int
    records: tuple[StepRecord, ...]
    data_norm: float | None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee and the neighboring relation of its proof."""
        return self.privacy.guarantee

    @property
    def epsilon_spent(self) -> float:
        """How much of the budget was used."""
        return self.privacy.epsilon_spent

    def __repr__(self) -> str:
        """Name sizes and the guarantee; the weights are in ``w``."""
        return (
            f"Solution(w of {self.w.size} numbers, {len(self.records)} batches, "
            f"{self.privacy!r})"
        )


def solve(
    X: Matrix,
    y: NDArray[Any],
    *,
    method: str | Method[Any],
    budget: Budget | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    loss: str | Loss = "logistic",
    n_rows: int | None = None,
    n_classes: int = 2,
    l2: float = 1e-3,
    fit_intercept: bool = True,
    max_batches: int | None = None,
    accounting: Accounting = "sound",
    seed: Seed = None,
    ledger: str | os.PathLike[str] | None = None,
) -> Solution:
    """Run any method.

    Parameters
    ----------
    X, y : arrays
        Rows, and labels -1 and +1 (class indices for softmax).  A row with another
        label is blank: it adds nothing to any sum, and nothing tells of it.
    method : str or Method
        One of :data:`armijo.registry.METHODS`, or an object with its options, such as
        ``DPSGD(steps=50)``.
    budget : Budget or None
        The (epsilon, delta) of the guarantee.
    epsilon, delta : float or None
        The same as two numbers, instead of ``budget``.
    loss : {"logistic", "hinge", "huber", "softmax"} or Loss
        A method that needs a smooth loss gets "huber" for "hinge".  An object of
        :class:`armijo.objectives.losses.Loss` is any other loss of a margin.
    n_rows : int or None
        The public number of rows; None takes the number found and promises under the
        zero-out relation.
    n_classes, l2, fit_intercept
        The problem.
    max_batches, accounting, ledger
        As in the estimators.
    seed : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws batches and noise from the operating system.  A seeded run repeats
        and carries no guarantee.  ``random_state`` of the estimators means the same.

    Returns
    -------
    Solution
        Weights, guarantee and released values.

    Examples
    --------
    >>> X, y = np.array([[0.0], [1.0]] * 500), np.array([-1.0, 1.0] * 500)
    >>> found = solve(X, y, method="sgd", budget=Budget(epsilon=1.0, delta=1e-6))
    >>> found.guarantee.relation.value, found.gradient_evaluations
    ('zero-out', 50)
    """
    budget = as_budget(budget, epsilon=epsilon, delta=delta)
    known = None if n_rows is None else _validate.row_count(n_rows)
    chosen = make_method(method)
    y = np.asarray(y)
    if getattr(X, "ndim", 0) != 2 or y.ndim != 1:
        raise ValueError(
            "Expected X to be an array or a CSR matrix of rows by columns and y to "
            f"have a label for each row, got {type(X).__name__} and labels of "
            f"{y.ndim} dimensions. Nothing was spent."
        )
    if loss == SOFTMAX:
        y = positions(y, np.arange(n_classes))
    else:
        y = for_loss(positions(y, np.array([-1, 1])), 2)
    objective = LinearObjective(
        loss=loss,
        n_features=X.shape[1],
        n_classes=n_classes,
        fit_intercept=fit_intercept,
        l2=l2,
    )
    run = Run(
        objective.smoothed() if chosen.smooth else objective,
        ArrayRows(X, y),
        chosen,
        budget,
        n_rows=X.shape[0] if known is None else known,
        relation=Neighboring.ZERO_OUT if known is None else Neighboring.ADD_REMOVE,
        accounting=accounting,
        max_batches=max_batches,
        seed=as_seed(seed),
        files=RunFiles(ledger=ledger),
    ).complete()
    gradients = [record.gradients for record in run.records]
    return Solution(
        w=run.w.numpy().copy(),
        privacy=run.privacy,
        gradient_evaluations=(
            None if None in gradients else sum(count or 0 for count in gradients)
        ),
        objective_evaluations=sum(record.tries for record in run.records),
        records=tuple(run.records),
        data_norm=chosen.prediction_norm,
    )
