# SPDX-License-Identifier: Apache-2.0
"""Linear classifiers in scikit-learn's manner, around the one driver."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _num_samples, check_is_fitted, validate_data
from torch import Tensor

from armijo import _validate
from armijo.accounting.budget import Budget
from armijo.data.blocks import RowBlocks
from armijo.data.distributed import ProcessGroup
from armijo.data.query import Matrix, clipped_rows
from armijo.data.sources import ArrayRows, RowSource
from armijo.engines import BlockTable, is_table, open_blocks
from armijo.estimators.additive import TABLE_BATCHES, LineClassifier
from armijo.estimators.base import (
    PrivateEstimator,
    as_column,
    by_partition,
    for_loss,
    no_cell_shown,
    positions,
    refuse_other_type,
    refuse_several,
    warn_of_leaks,
    whole_or_not,
)
from armijo.estimators.encoders import (
    ArrayBlock,
    ClassLabels,
    ScaledBlock,
    declared_classes,
    named_column,
    refuse_labels,
)
from armijo.methods.auto import Auto
from armijo.methods.base import Method, StepRecord
from armijo.objectives.linear import SOFTMAX, LinearObjective
from armijo.objectives.losses import Loss
from armijo.randomness import as_seed
from armijo.registry import make_method
from armijo.tables.frames import SchemaLike, is_frame, to_frame
from armijo.training.run import Callback, Run, RunFiles

_HINGES: dict[str, Any] = {"hinge": "hinge", "huber": "huberized-hinge"}
"""The losses of a support vector machine, as an additive model calls them."""


class PrivateLinearClassifier(ClassifierMixin, PrivateEstimator):
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
    schema : Schema, path, dict, "from-dtypes" or None
        What is public of the columns of a table, as of
        :class:`armijo.PrivateClassifier`; for the method "auto".
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
    distributed : bool
        Whether each process of ``torchrun`` holds a shard of the rows: they train one
        model.  ``torch.distributed`` must be initialized, ``classes`` and ``n_rows``
        declared.

    Attributes
    ----------
    coef_, intercept_, classes_ : arrays
        The model.  Of a table, coefficients are those of ``table_.feature_names_``:
        numbers in standard deviations, and levels of categories.
    table_ : LineClassifier
        The model of a table; a model of arrays has none.
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
        schema: SchemaLike = None,
        n_rows: int | None = None,
        max_batches: int | None = 3000,
        accounting: str = "sound",
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        leaky_diagnostics: bool = False,
        distributed: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.budget = budget
        self.method = method
        self.loss = loss
        self.l2 = l2
        self.fit_intercept = fit_intercept
        self.classes = classes
        self.schema = schema
        self.n_rows = n_rows
        self.max_batches = max_batches
        self.accounting = accounting
        self.ledger = ledger
        self.random_state = random_state
        self.callback = callback
        self.leaky_diagnostics = leaky_diagnostics
        self.distributed = distributed

    def fit(self, X: Any, y: Any, person: Any = None) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : array, CSR matrix, memmap, DataFrame of pandas, Polars or pyarrow, or stream
            An array is used as it is: scale it by *public* bounds.  Columns of a table
            may be numbers in natural units, text, booleans and dates, with missing
            cells: the method "auto" learns their scales privately; other methods take
            columns of numbers as they are.  A ``pyarrow.dataset.Dataset``, a LazyFrame
            of Polars or a relation of DuckDB is read in blocks and may be larger than
            memory.
        y : array of shape (n_samples,), or str
            Labels, or the name of their column in a frame or stream.  With declared
            ``classes``, a row with another label or a feature that is not finite is
            blank: it adds nothing to any sum, and nothing tells of it.
            :func:`armijo.estimators.unknown_rows` names such labels to the owner of the
            rows.
        person : array of shape (n_samples,) or None
            Whose row it is, as of :class:`armijo.PrivateClassifier`: for tables, whose
            releases are sums that give each row a weight.

        Returns
        -------
        self
        """
        return self.fit_resumable(X, y, person=person)

    @whole_or_not
    def fit_resumable(
        self,
        X: Any,
        y: Any = None,
        *,
        person: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        fingerprint: Mapping[str, Any] | None = None,
        resume: bool = False,
        ready: Callable[[], object] | None = None,
        memory: int | None = None,
    ) -> Self:
        """Train like :meth:`fit`, with a checkpoint to go on from.

        Parameters
        ----------
        X, y, person : arrays
            As in :meth:`fit`.
        checkpoint : path or None
            Written at the start, every few seconds and when the run ends.  The ledger
            lies beside it (its name and ``.ledger``) if the estimator names none, and
            the secret key of the run until the run has ended.
        fingerprint : mapping or None
            Public JSON values that ledger and checkpoint must share with the run; of
            streams and engines what codes their rows is added.
        resume : bool
            Whether to go on from the checkpoint and the ledger.
        ready : callable or None
            Called once all checks have passed, before the first file is made; it may
            make the folder of the checkpoint.
        memory : int or None
            Bytes of a stream's rows that may be kept; None is half of what is free.

        Returns
        -------
        self
        """
        _validate.function(callback=self.callback)
        _validate.boolean(leaky_diagnostics=self.leaky_diagnostics)
        # What an earlier fit leaked must not lie beside the guarantee of this one.
        for earlier in ("leaky_diagnostics_", "table_"):
            self.__dict__.pop(earlier, None)
        if self._takes_table(X):
            return self._fit_table(
                X,
                y,
                person=person,
                checkpoint=checkpoint,
                fingerprint=fingerprint,
                resume=resume,
                ready=ready,
                memory=memory,
            )
        self._refuse_persons(person)
        group = self._group()
        refuse_several(
            self.distributed,
            classes_read_from_the_labels=self.classes is None,
            leaky_diagnostics=self.leaky_diagnostics,
        )
        source, facts = group.all_or_none(lambda: self._source(X, y, memory))
        files = RunFiles(
            ledger=self.ledger,
            checkpoint=checkpoint,
            resume=resume,
            named={**(fingerprint or {}), **facts},
            ready=ready,
        )
        warn_of_leaks(
            classes_read=self.classes is None,
            accounting=self.accounting,
            leaky=self.leaky_diagnostics,
        )
        method, objective = self._problem()
        run = self._run(source, method, objective, files, group)
        if not self.leaky_diagnostics:
            run.complete(self.callback)
        else:
            assert isinstance(source, ArrayRows)
            X, labels, _ = source.parts()
            exact = LeakyDiagnostics(X, labels, objective, method.prediction_norm)

            def watched(record: StepRecord) -> object:
                exact(record.batch, run.w)
                return None if self.callback is None else self.callback(record)

            run.complete(watched)
            self.leaky_diagnostics_ = exact.table()
        self._keep(run, method, objective)
        return self

    @property
    def learns_scales(self) -> bool:
        """Whether the columns of a table are learned privately: by "auto"."""
        usual = self.fit_intercept is True and self.accounting == "sound"
        usual = usual and self.loss in (None, *self._losses)
        usual = usual and not self.leaky_diagnostics
        return usual and make_method(self.method) == Auto()

    def _refuse_persons(self, person: Any) -> None:
        """Refuse persons where a row has no weight: it is not one of a table's sums."""
        if person is not None:
            raise ValueError(
                "Expected person=None, got persons: only a table that method='auto' "
                "learns, with an intercept, sound accounting and a loss by name, "
                f"weighs several rows of one person; this is method {self.method!r} "
                "for an array or for columns taken as they are. Nothing was spent."
            )

    def _takes_table(self, X: Any) -> bool:
        """Say whether rows are those of a table, whose columns are learned."""
        if self.learns_scales:
            return self.schema is not None or is_table(X)
        if self.schema is not None:
            raise ValueError(
                "Expected schema=None for a linear model of arrays, got one: only "
                'method="auto", with an intercept, sound accounting and a loss by '
                "name, learns the columns of a table. Leave the schema out and scale "
                "the columns by public bounds. Nothing was spent."
            )
        return False

    def table_estimator(self, **settings: Any) -> LineClassifier:
        """Return the estimator of a table with the parameters of this one, or others.

        A table has a model at the end only: a limit must allow all batches.
        """
        if self.max_batches is not None:
            _validate.at_least(TABLE_BATCHES, max_batches=self.max_batches)
        names = LineClassifier().get_params()
        own = {k: v for k, v in self.get_params(deep=False).items() if k in names}
        table = LineClassifier(**own | settings)
        loss = self._losses[0] if self.loss is None else str(self.loss)
        table.hinge = _HINGES.get(loss)
        return table

    def _fit_table(self, X: Any, y: Any, **files: Any) -> Self:
        """Learn the columns of a table, and the model."""
        table = self.table_estimator().fit_resumable(X, y, **files)
        for name in ("privacy_", "history_", "n_iter_", "classes_", "n_features_in_"):
            setattr(self, name, getattr(table, name))
        self.__dict__.pop("feature_names_in_", None)
        if hasattr(table, "feature_names_in_"):
            self.feature_names_in_ = table.feature_names_in_
        for earlier in ("coef_", "intercept_"):
            self.__dict__.pop(earlier, None)
        if hasattr(table, "model_"):
            self.coef_, self.intercept_ = table.model_.coefficients()
        self.data_norm_: float | None = None
        self.table_ = table.set_params(callback=None, random_state=None, ledger=None)
        return self

    def _run(
        self,
        source: RowSource,
        method: Method[Any],
        objective: LinearObjective,
        files: RunFiles,
        group: ProcessGroup,
    ) -> Run:
        """Return the run of a fit, ready for its first batch."""
        n_rows, relation = self._public_rows(len(source))
        self._refuse_apart(group, source, n_features=objective.n_features)
        return Run(
            objective,
            source,
            method,
            self._budget(),
            n_rows=n_rows,
            relation=relation,
            accounting=self.accounting,  # type: ignore[arg-type]
            max_batches=self.max_batches,
            seed=as_seed(self.random_state, name="random_state"),
            leaky=self.leaky_diagnostics,
            files=files,
            group=group,
        )

    def _source(
        self, X: Any, y: Any, memory: int | None
    ) -> tuple[RowSource, dict[str, Any]]:
        """Return the rows of a fit, in memory or streamed, and set the classes.

        With the facts of a stream, which decide how its rows are coded.
        """
        stream, y = open_blocks(X, y)
        if stream is not None:
            return self._streamed(stream, y, memory)
        if is_frame(X):
            X = X if isinstance(X, pd.DataFrame) else to_frame(X)
            if isinstance(y, str):
                y, X = named_column(X, y), X.drop(columns=y)
            _refuse_texts(X)
        X, y = self._checked(X, y)
        return ArrayRows(X, self._encoded(y)), {}

    def _streamed(
        self, stream: BlockTable, y: str | None, memory: int | None
    ) -> tuple[RowBlocks, dict[str, Any]]:
        """Return the rows of a stream: as its encoder has them, or columns of numbers.

        Only names and types are looked at.
        """
        refuse_labels(y)
        refuse_several(self.distributed, stream=True)
        if self.leaky_diagnostics:
            raise ValueError(
                "Expected rows in memory for leaky_diagnostics, got a stream. Nothing "
                "was spent."
            )
        encode: Any = stream.encode
        if isinstance(encode, ScaledBlock):
            self.classes_ = declared_classes(self.classes, pd.Series(dtype=object))
            self.n_features_in_ = len(encode.schema.feature_names)
            names = encode.column_names
        else:
            encode = self._array_block(stream.head(), y)
            self.n_features_in_ = len(encode.names)
            if stream.named:
                self.feature_names_in_ = np.array(encode.names, dtype=object)
            names = [*encode.names, encode.labels.name]
        self._refuse_classes()
        cell_bytes = 8 * self.n_features_in_
        rows = stream.rows(encode, columns=names, cell_bytes=cell_bytes, memory=memory)
        return rows, encode.facts

    def _array_block(self, head: pd.DataFrame, y: str | None) -> ArrayBlock:
        if y is None:
            raise ValueError(
                "Expected y to name the column of labels of a stream, got None. "
                "Nothing was spent."
            )
        labels = named_column(head, y)
        features = head.drop(columns=y)
        _refuse_texts(features)
        self.classes_ = declared_classes(self.classes, labels)
        return ArrayBlock(tuple(features.columns), ClassLabels(y, self.classes_))

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
            if y is not None:
                lengths = _num_samples(X), _num_samples(y)
                _validate.same_length("a label for each row", *lengths)
            with no_cell_shown():
                X, y = validate_data(self, X, y, **given)
            check_classification_targets(y)
            self.classes_ = np.unique(y)
        else:
            with no_cell_shown():
                X = validate_data(self, X, **given, ensure_all_finite=False)
            y = as_column(y)
            _validate.same_length("a label for each row", X.shape[0], len(y))
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
        self._keep_run(run)
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

    @by_partition
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return scores: one for each row, or one for each row and class."""
        check_is_fitted(self)
        if hasattr(self, "table_"):
            return self.table_.decision_function(X)
        X = validate_data(
            self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False
        )
        X = clipped_rows(X, self.data_norm_)
        scores = np.asarray(X @ self.coef_.T + self.intercept_, dtype=np.float64)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    @by_partition
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row; a score of zero counts as the second class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.asarray(self.classes_[(scores >= 0).astype(int)])
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def __sklearn_tags__(self) -> Tags:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        # Noise may cost any accuracy on the tiny tables of the estimator checks.
        tags.classifier_tags.poor_score = True
        tags.classifier_tags.multi_class = self._multi_class
        return tags


def _refuse_texts(features: pd.DataFrame) -> None:
    """Refuse columns of which no array can be made, by their types."""
    numeric = pd.api.types.is_numeric_dtype
    for name, kind in features.dtypes.items():
        if not numeric(kind) and not pd.api.types.is_object_dtype(kind):
            raise ValueError(
                f"Expected columns of numbers, got {name!r} of type {kind}; use "
                'method="auto", which learns the columns of a table, or encode it by '
                "public knowledge. Nothing was spent."
            )


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

    @by_partition
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class."""
        scores = self.decision_function(X)
        if scores.ndim == 1:
            positive = expit(scores)
            return np.column_stack([1 - positive, positive])
        return np.asarray(softmax(scores, axis=1))

    @by_partition
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
