# SPDX-License-Identifier: Apache-2.0
"""Models of tables as they come, in scikit-learn's manner.

A table is coded by its public schema (:mod:`armijo.tables`); everything else about it,
from the scale of a column to the shape of its effect, is learned by releases that are
paid for (:mod:`armijo.methods.additive`).
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from armijo import _validate
from armijo.accounting.budget import Budget, Computed
from armijo.data.blocks import RowBlocks
from armijo.data.coded import CodedRows, CodedTable
from armijo.data.sources import RowSource
from armijo.engines import BlockTable, open_blocks
from armijo.errors import TableError
from armijo.estimators.base import (
    PrivateEstimator,
    as_column,
    by_partition,
    no_cell_shown,
    positions,
    refuse_other_type,
    refuse_several,
    warn_of_leaks,
    whole_or_not,
)
from armijo.estimators.doubts import doubts_about, warn_of_doubts
from armijo.estimators.encoders import (
    ClassLabels,
    PersonBlock,
    TableBlock,
    Targets,
    declared_classes,
    margin_labels,
    named_column,
    refuse_labels,
)
from armijo.estimators.weights import (
    ClassWeight,
    class_weights,
    clipped_weights,
    person_weights,
    row_weights,
)
from armijo.methods.additive import ONE_PHASE, Additive
from armijo.objectives.additive import AdditiveObjective
from armijo.objectives.elementwise import elementwise_self_test
from armijo.plotting import plot_shapes
from armijo.randomness import as_seed
from armijo.tables.coder import (
    code_column,
    code_table,
    coded_columns,
    refuse_columns,
)
from armijo.tables.columns import Label, Person, Target
from armijo.tables.frames import (
    FROM_DTYPES,
    SchemaLike,
    is_frame,
    resolved_schema,
    to_frame,
)
from armijo.tables.stream import StreamedTable
from armijo.training.run import Callback, Run, RunFiles

TABLE_BATCHES = 6 + ONE_PHASE[0]
"""The most batches of a model of lines: two of counts, moments, steps, and three."""


class PrivateTableEstimator(PrivateEstimator):
    """Base of the private models of tables.

    Parameters
    ----------
    epsilon, delta : float
        The (epsilon, delta) of the guarantee of one ``fit``; it is also what is
        reported.
    budget : Budget or None
        The same as one object.  With it, ``epsilon`` and ``delta`` keep their defaults.
    schema : Schema, path, dict, "from-dtypes" or None
        What is public of the columns beyond their names and types: a schema or its
        file, which is complete, or a dict with for some columns a kind (``"ignore"``),
        bounds (a tuple of two numbers or None) or categories (a list).  What is not
        declared is learned privately; texts without a list are hashed.  "from-dtypes"
        takes the categories that a type lists for declared.
    n_rows : int or None
        The public number of rows (of persons, with ``person``).  None takes that of the
        schema, else the number found, and reports the zero-out relation, under which it
        is public by definition.
    monotone : mapping or None
        Numeric columns whose shape never falls (1) or never rises (-1).
    person : str or None
        The column that says whose row it is.  The unit of privacy is then a person with
        all their rows, and ``n_rows`` has to be given.  An array can be given to
        ``fit`` instead.
    l2 : float
        Penalty.
    pairs : bool or None
        Whether products of two columns enter; None decides by public numbers.
    ledger : path or None
        File that remembers every charge; None keeps them in memory.
    random_state : None, int, numpy.random.Generator or numpy.random.RandomState
        None draws noise from the operating system.  Anything else is deterministic and
        voids the guarantee.
    callback : callable or None
        Receives each step record; returning True stops the run, which then has no
        model yet.
    distributed : bool
        Whether each process of ``torchrun`` holds a shard of the rows: they train one
        model.  ``torch.distributed`` must be initialized, classes and ``n_rows``
        declared.
    """

    _not_features: tuple[str, ...] = ()
    """Columns that the fit took for labels or weights: a frame may still have them."""

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        budget: Budget | None = None,
        schema: SchemaLike = None,
        n_rows: int | None = None,
        monotone: Mapping[str, int] | None = None,
        person: str | None = None,
        l2: float = 1e-3,
        pairs: bool | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        distributed: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.budget = budget
        self.schema = schema
        self.n_rows = n_rows
        self.monotone = monotone
        self.person = person
        self.l2 = l2
        self.pairs = pairs
        self.ledger = ledger
        self.random_state = random_state
        self.callback = callback
        self.distributed = distributed

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, person: Any = None
    ) -> Self:
        """Train with differential privacy.

        Parameters
        ----------
        X : DataFrame of pandas, Polars or pyarrow, array, or stream
            The rows, in natural units.  A ``pyarrow.dataset.Dataset``, a LazyFrame of
            Polars or a relation of DuckDB is read in blocks and may be larger than
            memory; its classes have to be declared.  A cell that is missing or does
            not fit its column is missing.  Columns of an array are numbers x0, x1, ...
        y : array of shape (n_samples,), str or None
            What to learn, or the name of its column; None takes the column that the
            schema names.
        sample_weight : array of shape (n_samples,), str or None
            Weights, clipped to [0, 1], or the name of their column; NaN is 0.
        person : array of shape (n_samples,) or None
            Whose row it is, in place of a column.

        Returns
        -------
        self
        """
        return self.fit_resumable(X, y, sample_weight=sample_weight, person=person)

    @whole_or_not
    def fit_resumable(
        self,
        X: Any,
        y: Any = None,
        *,
        sample_weight: Any = None,
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
        X, y, sample_weight, person
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
        group = self._group()
        stream, y = open_blocks(X, y)
        refuse_several(self.distributed, stream=stream is not None)
        facts: dict[str, Any] = {}
        if stream is None:
            source, assumed = group.all_or_none(
                lambda: self._in_memory(X, y, sample_weight, person)
            )
        else:
            self._refuse_in_stream(sample_weight, person, y)
            source, assumed, facts = self._streamed(stream, y, sample_weight, memory)
        n_rows, relation = self._public_rows(len(source), self.schema_.n_rows)
        files = RunFiles(
            ledger=self.ledger,
            checkpoint=checkpoint,
            resume=resume,
            named={**(fingerprint or {}), **facts},
            ready=ready,
        )
        typed = is_frame(X) if stream is None else stream.named
        alone = person is None and self.schema_.person is None
        refuse_several(self.distributed, person=not alone)
        tested = Computed(
            assumptions=(elementwise_self_test(), *assumed * typed),
            unit="row" if alone else "person",
        )
        objective = self._objective()
        self._refuse_apart(group, source, columns=objective)
        run = Run(
            objective,
            source,
            self._method(),
            self._budget(),
            n_rows=n_rows,
            relation=relation,
            seed=as_seed(self.random_state, name="random_state"),
            computed=tested,
            files=files,
            group=group,
        )
        self.__dict__.pop("model_", None)
        named = (name for name in (y, sample_weight) if isinstance(name, str))
        self._not_features = tuple(named)
        run.complete(self.callback)
        self._keep_run(run)
        method = run.method
        assert isinstance(method, Additive)
        if self.n_iter_ == sum(count for _, count in method.schedule()):
            self.model_ = method.model(run.state)
            self.releases_ = pd.DataFrame(method.releases())
            self.doubts_ = doubts_about(self.model_, run.accountant.budget, n_rows)
            warn_of_doubts(self.doubts_)
        return self

    def _resolve(self, frame: pd.DataFrame) -> tuple[str, ...]:
        """Set the schema of a table, and return what it takes for public."""
        schema, assumed = resolved_schema(self.schema, frame, person=self.person)
        self.schema_ = schema
        self.columns_ = coded_columns(schema, self.monotone)
        return assumed

    def _in_memory(
        self, X: Any, y: Any, sample_weight: Any, person: Any
    ) -> tuple[RowSource, tuple[str, ...]]:
        """Return the rows of a table, and what its schema takes for public."""
        frame = self._frame(X, reset=True)
        if isinstance(y, str):
            y, frame = named_column(frame, y), frame.drop(columns=y)
            self._frame(frame, reset=True)  # y is no feature
        if isinstance(sample_weight, str):
            weights = named_column(frame, sample_weight, "sample_weight")
            frame, sample_weight = frame.drop(columns=sample_weight), weights
            self._frame(frame, reset=True)
        assumed = self._resolve(frame)
        return self._held_rows(frame, y, sample_weight, person), assumed

    def _held_rows(
        self, frame: pd.DataFrame, y: Any, sample_weight: Any, person: Any
    ) -> CodedRows:
        """Return the rows of a table in memory."""
        table = code_table(frame, self.schema_, columns=self.columns_)
        labels = self._response(frame, y)
        persons = self._persons(frame, person)
        weights = row_weights(
            clipped_weights(sample_weight, len(frame)),
            None if persons is None else person_weights(persons, len(frame)),
        )
        return CodedRows(table, labels, weights)

    def _streamed(
        self,
        stream: BlockTable,
        y: str | None,
        sample_weight: str | None,
        memory: int | None,
    ) -> tuple[RowBlocks, tuple[str, ...], dict[str, Any]]:
        """Return the rows of a stream, what its schema takes for public, and facts.

        The facts decide how rows are coded; rows in memory are known by their codes.
        """
        head = stream.head()
        features = head
        for what, name in (("y", y), ("sample_weight", sample_weight)):
            if name is not None:
                named_column(features, name, what)
                features = features.drop(columns=name)
        assumed = self._resolve(features)
        refuse_columns(features, self.schema_, empty=True)
        self.n_features_in_ = features.shape[1]
        if stream.named:
            self.feature_names_in_ = np.array(list(features.columns), dtype=object)
        encode = self._block(head, y, sample_weight)
        if isinstance(encode, PersonBlock):
            _refuse_uncounted(stream)
        encode.refuse_types(head)
        rows = stream.rows(
            encode,
            columns=encode.needed,
            cell_bytes=8 * len(self.columns_),
            features=self._objective().most_features,
            memory=memory,
        )
        return rows, assumed, encode.facts

    def _block(
        self, head: pd.DataFrame, y: str | None, sample_weight: str | None
    ) -> TableBlock:
        """Return what codes a block of a stream."""
        names = tuple(c.name for c in self.schema_.columns if c.is_feature)
        given = self.schema_, self.columns_, self._streamed_response(head, y), names
        if self.schema_.person is None:
            return TableBlock(*given, sample_weight)
        self._refuse_unknown_persons()
        return PersonBlock(*given, sample_weight, person=Person(self.schema_.person))

    def _refuse_in_stream(self, sample_weight: Any, person: Any, y: Any) -> None:
        """Refuse what needs all rows in memory, before anything is read."""
        refuse_labels(y)
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise ValueError(
                "Expected sample_weight to be the name of a column for rows that are "
                f"streamed, got {type(sample_weight).__name__}; add the weights to the "
                "table. Nothing was spent."
            )
        if person is not None:
            raise TableError(
                "Expected persons as a column for rows that are streamed, got an "
                "array; add it to the table and name it when the estimator is made. "
                "Nothing was spent."
            )
        if isinstance(self.schema, str) and self.schema == FROM_DTYPES:
            raise TableError(
                "Expected declared categories for rows that are streamed, got "
                "schema='from-dtypes': blocks may list different ones. Declare them. "
                "Nothing was spent."
            )

    def _frame(self, X: Any, *, reset: bool) -> pd.DataFrame:
        """Return the rows as a frame of pandas, refusing what is no table."""
        if not is_frame(X):
            with no_cell_shown():
                X = validate_data(
                    self, X, reset=reset, ensure_all_finite=False, dtype=[np.float64]
                )
            return pd.DataFrame(X, columns=[f"x{k}" for k in range(X.shape[1])])
        frame = to_frame(X)
        if reset:
            self.n_features_in_ = frame.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            if not isinstance(X, pd.DataFrame) or X is frame:  # not numbered
                self.feature_names_in_ = np.array(list(frame.columns), dtype=object)
        return frame

    def _persons(self, frame: pd.DataFrame, persons: Any) -> NDArray[Any] | None:
        """Return whose row each is, from a column or an array."""
        name = self.schema_.person
        if persons is None and name is None:
            return None
        if persons is not None and name is not None:
            raise ValueError(
                f"Expected persons as a column or as an array, got both, the column "
                f"{name!r} and person=; leave one out. Nothing was spent."
            )
        self._refuse_unknown_persons()
        if name is not None:
            return code_column(frame, Person(name))
        values = pd.Series(as_column(persons, dtype=object), name="person")
        _validate.same_length("a person for each row", len(values), len(frame))
        (found,) = Person("person").code(values)
        return found

    def _refuse_unknown_persons(self) -> None:
        """Refuse persons of whom no number is public."""
        if self.n_rows is None and self.schema_.n_rows is None:
            raise ValueError(
                "Expected the public number of persons as n_rows, got None: how many "
                "persons have rows is not public by itself. Nothing was spent."
            )

    def _method(self) -> Additive:
        return Additive(pairs=self.pairs)

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """Return the model's scores of some rows."""
        check_is_fitted(self, "model_")
        return np.asarray(self.model_.scores(self._table(X)))

    def _table(self, X: Any) -> CodedTable:
        frame = self._frame(X, reset=False)
        frame = frame.drop(columns=list(self._not_features), errors="ignore")
        return code_table(frame, self.schema_, columns=self.columns_)

    def plot_shapes(self, axes: Any = None) -> Any:
        """Draw the fitted contribution of every column, and return the axes.

        They are released values: nothing is spent.
        """
        check_is_fitted(self, "model_")
        shapes, names = self.model_.shapes(), self.level_names_
        return plot_shapes(shapes, names, self._outputs, axes)

    @property
    def level_names_(self) -> dict[str, tuple[str, ...]]:
        """The names of the levels of each category."""
        parts = self.schema_.parts
        return {part.info.name: part.level_names for part in parts}

    def __sklearn_tags__(self) -> Tags:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags


class PrivateClassifier(ClassifierMixin, PrivateTableEstimator):
    """Classes of table rows under differential privacy, with nothing to set.

    One shape for each column (and for each of more than two classes), products of two
    columns where rows are many for the noise, probabilities that are calibrated.
    Parameters are those of :class:`PrivateTableEstimator`, and:

    Parameters
    ----------
    classes : sequence or None
        The public list of classes.  None takes that of the schema, False and True for
        labels of a boolean type, else reads it from the labels, which is a leak and
        warned about.  A row with another label is blank once classes are declared.
    class_weight : mapping, "balanced" or None
        Weights by class, divided by the largest; "balanced" uses released counts.

    Attributes
    ----------
    classes_ : array
        The classes.
    model_ : AdditiveModel
        What was learned: released values only.
    schema_ : Schema
        What counted as public of the columns.
    doubts_ : tuple of str
        What released values and settings give reason to look at.
    releases_ : DataFrame
        What was released: name, number, L2 sensitivity and share of the budget.
    privacy_, history_, n_iter_
        As of :class:`armijo.PrivateLogisticRegression`.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> age = np.random.default_rng(0).integers(18, 90, 20_000)
    >>> people = pd.DataFrame({"age": age, "sex": pd.array(["f", "m"] * 10_000, "str")})
    >>> model = PrivateClassifier(epsilon=1.0, delta=1e-6, classes=["low", "high"])
    >>> income = np.where(age > 40, "high", "low")
    >>> model.fit(people, income).score(people, income) > 0.95
    True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        budget: Budget | None = None,
        schema: SchemaLike = None,
        classes: Sequence[Any] | None = None,
        n_rows: int | None = None,
        monotone: Mapping[str, int] | None = None,
        class_weight: ClassWeight = None,
        person: str | None = None,
        l2: float = 1e-3,
        pairs: bool | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        distributed: bool = False,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            budget=budget,
            schema=schema,
            n_rows=n_rows,
            monotone=monotone,
            person=person,
            l2=l2,
            pairs=pairs,
            ledger=ledger,
            random_state=random_state,
            callback=callback,
            distributed=distributed,
        )
        self.classes = classes
        self.class_weight = class_weight

    def _response(self, frame: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        """Return labels as the loss takes them; NaN makes a row blank."""
        places = self._places(frame, y)
        if len(self.classes_) < 2:
            where = "the labels" if self.classes is None else "classes="
            raise ValueError(
                f"Expected at least two classes in {where}, got "
                f"{self.classes_.tolist()}; a classifier cannot learn from one class. "
                "Nothing was spent."
            )
        return margin_labels(places, len(self.classes_))

    def _streamed_response(self, head: pd.DataFrame, y: str | None) -> ClassLabels:
        """Return the reader of labels; their classes must be declared."""
        label = self.schema_.response
        if isinstance(label, Target):
            raise _a_number(label.name)
        if (
            isinstance(label, Label)
            and self.classes is None
            and y in (None, label.name)
        ):
            self.classes_ = np.array(label.classes)
            return ClassLabels(label, self.classes_)
        name = label.name if y is None and label is not None else y
        if name is None:
            raise _no_target()
        self.classes_ = declared_classes(self.classes, named_column(head, name))
        return ClassLabels(name, self.classes_)

    def _places(self, frame: pd.DataFrame, y: Any) -> NDArray[np.int64]:
        """Return the place of each label among the classes, which are set."""
        label = self.schema_.response
        if isinstance(label, Target):
            raise _a_number(label.name)
        if isinstance(label, Label) and self.classes is None:
            self.classes_ = np.array(label.classes)
            if y is not None:
                y = as_column(y, dtype=object)
                _validate.same_length("a label for each row", len(y), len(frame))
                frame = pd.DataFrame({label.name: y})
            return code_column(frame, label).astype(np.int64)
        if y is None:
            if label is None:
                raise _no_target()
            y = frame[label.name]
        return self._own_places(y, len(frame))

    def _own_places(self, y: Any, n_rows: int) -> NDArray[np.int64]:
        """Return places among classes that are given, or read."""
        listed = isinstance(getattr(y, "dtype", None), pd.CategoricalDtype)
        known: Any = self.classes
        if known is None and listed and self.schema == FROM_DTYPES:
            known = y.dtype.categories.tolist()
        y = as_column(y, typed=known is None)
        _validate.same_length("a label for each row", len(y), n_rows)
        if known is None and y.dtype == bool:
            known = [False, True]
        refuse_several(self.distributed, classes_read_from_the_labels=known is None)
        warn_of_leaks(classes_read=known is None, accounting="sound", leaky=False)
        if known is None:
            known = _read_classes(y)
        self.classes_ = np.unique(np.asarray(known))
        refuse_other_type(y, self.classes_)
        return positions(y, self.classes_)

    @property
    def _outputs(self) -> tuple[str, ...]:
        """What each line of a shape is for."""
        return tuple(map(str, self.classes_)) if len(self.classes_) > 2 else ()

    def _objective(self) -> AdditiveObjective:
        return AdditiveObjective(
            columns=self.columns_,
            loss="logistic" if len(self.classes_) == 2 else "softmax",
            n_classes=len(self.classes_),
            l2=self.l2,
            class_weight=class_weights(self.class_weight, self.classes_),
        )

    @by_partition
    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Return calibrated log-odds: one for each row, or one per row and class."""
        return self._scores(X)

    @by_partition
    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class."""
        scores = self._scores(X)
        if scores.ndim == 1:
            positive = expit(scores)
            return np.column_stack([1 - positive, positive])
        return np.asarray(softmax(scores, axis=1))

    @by_partition
    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the logarithm of the probability of each class."""
        return np.asarray(np.log(self.predict_proba(X)))

    @by_partition
    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row."""
        scores = self._scores(X)
        if scores.ndim == 1:
            return np.asarray(self.classes_[(scores >= 0).astype(int)])
        return np.asarray(self.classes_[scores.argmax(axis=1)])

    def __sklearn_tags__(self) -> Tags:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        # Noise may cost any accuracy on the tiny tables of the estimator checks.
        tags.classifier_tags.poor_score = True
        return tags


class LineClassifier(PrivateClassifier):
    """A line for each number and a coefficient for each level: a linear model.

    What :class:`armijo.PrivateLogisticRegression` and :class:`armijo.PrivateLinearSVC`
    make of a table.  Parameters are those of :class:`PrivateClassifier`.
    """

    hinge: Literal["hinge", "huberized-hinge"] | None = None
    """The loss in place of the logistic one."""

    def _method(self) -> Additive:
        return Additive(basis="line", pairs=False)

    def _objective(self) -> AdditiveObjective:
        objective = super()._objective()
        return replace(objective, loss=self.hinge) if self.hinge else objective

    @property
    def feature_names_(self) -> tuple[str, ...]:
        """The names of the features that have coefficients."""
        return self.model_.feature_names(self.level_names_)


class PrivateRegressor(RegressorMixin, PrivateTableEstimator):
    """A number of table rows under differential privacy, with nothing to set.

    Parameters are those of :class:`PrivateTableEstimator`, and:

    Parameters
    ----------
    loss : {"squared", "huber"}
        What is minimized.
    target_bounds : tuple of two numbers, or None
        Public bounds, to which targets are clipped.  None takes those of the schema;
        without any they are learned privately, for a share of the budget.

    Attributes
    ----------
    model_, schema_, doubts_, releases_, privacy_, history_, n_iter_
        As of :class:`PrivateClassifier`.
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        budget: Budget | None = None,
        schema: SchemaLike = None,
        loss: Literal["squared", "huber"] = "squared",
        target_bounds: tuple[float, float] | None = None,
        n_rows: int | None = None,
        monotone: Mapping[str, int] | None = None,
        person: str | None = None,
        l2: float = 1e-3,
        pairs: bool | None = None,
        ledger: str | os.PathLike[str] | None = None,
        random_state: Any = None,
        callback: Callback | None = None,
        distributed: bool = False,
    ) -> None:
        super().__init__(
            epsilon=epsilon,
            delta=delta,
            budget=budget,
            schema=schema,
            n_rows=n_rows,
            monotone=monotone,
            person=person,
            l2=l2,
            pairs=pairs,
            ledger=ledger,
            random_state=random_state,
            callback=callback,
            distributed=distributed,
        )
        self.loss = loss
        self.target_bounds = target_bounds

    def _response(self, frame: pd.DataFrame, y: Any) -> NDArray[np.float64]:
        """Return targets; a row without a finite one is blank."""
        target = self.schema_.response
        if isinstance(target, Label):
            raise _has_classes(target.name)
        if y is None:
            if target is None:
                raise _no_target()
            return code_column(frame, target).astype(np.float64)
        values = as_column(y)
        _validate.same_length("a target for each row", len(values), len(frame))
        (numbers,) = Target("y").code(pd.Series(values, name="y"))
        return np.asarray(numbers)

    def _streamed_response(self, head: pd.DataFrame, y: str | None) -> Targets:
        """Return the reader of targets."""
        target = self.schema_.response
        if isinstance(target, Label):
            raise _has_classes(target.name)
        if y is not None:
            return Targets(Target(y))
        if target is None:
            raise _no_target()
        return Targets(target)

    _outputs: tuple[str, ...] = ()

    def _objective(self) -> AdditiveObjective:
        _validate.choice(("squared", "huber"), loss=self.loss)
        bounds, target = self.target_bounds, self.schema_.response
        if bounds is None and isinstance(target, Target):
            bounds = target.bounds
        if bounds is not None:
            _refuse_target_bounds(bounds)
        return AdditiveObjective(
            columns=self.columns_,
            loss=self.loss,
            l2=self.l2,
            target_bounds=(None, None) if bounds is None else (bounds[0], bounds[1]),
        )

    @by_partition
    def predict(self, X: Any) -> NDArray[np.float64]:
        """Return the expected target of each row, in its own unit."""
        return self._scores(X)

    def __sklearn_tags__(self) -> Tags:
        """Say what scikit-learn may expect."""
        tags = super().__sklearn_tags__()
        # Noise may cost any accuracy on the tiny tables of the estimator checks.
        tags.regressor_tags.poor_score = True
        return tags


def _refuse_uncounted(stream: BlockTable) -> None:
    """Refuse persons in rows that are not surely those that were counted."""
    if not isinstance(stream, StreamedTable) or not stream.ordered:
        raise TableError(
            "Expected rows of different people, got a person column: how many rows a "
            "person has is counted once, of rows in memory, of files and of datasets. "
            "Write the rows to Parquet files, or load them. Nothing was spent."
        )


def _a_number(name: str) -> TableError:
    return TableError(
        f"Expected classes to learn, got {name!r}, which the schema says is a number; "
        "use PrivateRegressor, or declare a label with classes. Nothing was spent."
    )


def _has_classes(name: str) -> TableError:
    return TableError(
        f"Expected a number to predict, got {name!r}, which the schema says has "
        "classes; use PrivateClassifier, or declare a target. Nothing was spent."
    )


def _no_target() -> TableError:
    return TableError(
        "Expected y, or a schema that names its target, got neither; without such a "
        "schema a fit requires y to be passed, but the target y is None. Nothing was "
        "spent."
    )


def _refuse_target_bounds(bounds: tuple[float, float]) -> None:
    numbers = isinstance(bounds, tuple | list) and len(bounds) == 2
    if numbers:
        _validate.finite(low=bounds[0], high=bounds[1])
    if not numbers or not bounds[0] < bounds[1]:
        raise ValueError(
            f"Expected target_bounds=(low, high) with low < high, got {bounds!r}; give "
            "public bounds, or None to learn them. Nothing was spent."
        )


def _read_classes(y: NDArray[Any]) -> NDArray[Any]:
    """Return the labels that occur: a leak that was warned about."""
    present = y[~pd.isna(y)]
    try:
        with np.errstate(invalid="ignore"):  # of infinite labels
            # NaN among numbers is an error of scikit-learn, None among texts no label.
            check_classification_targets(present if y.dtype == object else y)
        return np.unique(present)
    except TypeError:
        raise ValueError(
            "Expected labels of one type, numbers or texts, got others; pass classes= "
            "and convert the labels. Nothing was spent."
        ) from None
