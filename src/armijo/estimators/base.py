# SPDX-License-Identifier: Apache-2.0
"""What all estimators share: budget, labels, leaks, and what a run leaves.

Once the classes are declared, nothing about a label may show: a job that fails because
of one label tells everybody who sees its exit code.  Only the type of the labels, which
is public, can be wrong; a row without a declared label is a blank row.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, fields
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_is_fitted

from armijo import _validate
from armijo.accounting.budget import Budget, Neighboring, as_budget
from armijo.data.blocks import RowBlocks
from armijo.data.distributed import SINGLE, ProcessGroup, TorchProcessGroup
from armijo.data.shards import refuse_shards
from armijo.data.sources import RowSource
from armijo.engines import engine_of, predict_blocks
from armijo.errors import PrivacyLeakWarning
from armijo.methods.base import StepRecord
from armijo.plotting import plot_history
from armijo.tables.stream import is_stream, open_stream
from armijo.training.run import Run

_DEFAULTS = {"epsilon": 1.0, "delta": 1e-5}
_COLUMNS = {"predict": "prediction", "predict_proba": "probability"}  # of Spark
UNKNOWN = -1
"""The position of a label that is not among the classes."""


Predict = TypeVar("Predict", bound=Callable[..., Any])


def by_partition(method: Predict) -> Predict:
    """Let a method that predicts rows do so on a table of an engine, lazily.

    Workers get the model without what only a fit needs.  A stream is predicted block by
    block, in the order of its rows.
    """

    @wraps(method)
    def predict(self: Any, X: Any) -> Any:
        if is_stream(X):
            check_is_fitted(self)
            blocks = open_stream(X).frames_with(self.__dict__.get("feature_names_in_"))
            return np.concatenate([method(self, block) for block in blocks])
        if engine_of(X) is None:
            return method(self, X)
        check_is_fitted(self)
        sent = copy(self).set_params(callback=None, random_state=None, ledger=None)
        classes = getattr(self, "classes_", np.empty(0))
        labels = len(classes) > 0 and method.__name__ == "predict"
        wide = "proba" in method.__name__ or (len(classes) > 2 and not labels)
        dtype = classes.dtype if labels else np.dtype(float)
        width = len(classes) if wide else None
        return predict_blocks(
            partial(method, sent),
            X,
            dtype,
            width,
            features=getattr(self, "feature_names_in_", None),
            column=_COLUMNS.get(method.__name__, "score"),
        )

    return predict  # type: ignore[return-value]


Fit = TypeVar("Fit", bound=Callable[..., Any])


def whole_or_not(fit: Fit) -> Fit:
    """Let a fit that ends with an error leave the estimator as it was before.

    A model must not lie beside the classes or the schema of a fit that was refused.
    """

    @wraps(fit)
    def attempt(self: Any, *args: Any, **named: Any) -> Any:
        before = dict(vars(self))
        try:
            return fit(self, *args, **named)
        except BaseException:
            vars(self).clear()
            vars(self).update(before)
            raise

    return attempt  # type: ignore[return-value]


class PrivateEstimator(BaseEstimator):
    """Base of all private estimators."""

    epsilon: float
    delta: float
    budget: Budget | None
    n_rows: int | None
    distributed: bool

    def _group(self) -> ProcessGroup:
        """Return the processes that hold the rows together."""
        _validate.boolean(distributed=self.distributed)
        return TorchProcessGroup() if self.distributed else SINGLE

    def _refuse_apart(
        self, group: ProcessGroup, source: RowSource, **public: object
    ) -> None:
        """Refuse processes that would not train as one, before anything is spent.

        They must share what is public, and no two may hold the same shard.
        """
        if group.size == 1:
            return
        assert not isinstance(source, RowBlocks)  # streams are refused before
        settings = self.get_params(deep=False)
        for name in ("ledger", "callback"):
            settings[name] = settings[name] is not None
        for name, value in {**settings, **public}.items():
            group.assert_same(name, repr(value))
        refuse_shards(group, source)

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

    def _public_rows(
        self, found: int, declared: int | None = None
    ) -> tuple[int, Neighboring]:
        """Return the public number of rows and the relation under which it is."""
        known = declared if self.n_rows is None else self.n_rows
        if known is None and self.distributed:
            raise ValueError(
                "Expected n_rows, the public number of all rows, when several "
                "processes hold a shard each, got None. Nothing was spent."
            )
        if known is None:
            return found, Neighboring.ZERO_OUT
        return _validate.row_count(known), Neighboring.ADD_REMOVE

    def _keep_run(self, run: Run) -> None:
        """Store what every run leaves."""
        self.privacy_ = run.privacy
        names = [field.name for field in fields(StepRecord)]
        records = [record.to_dict() for record in run.records]
        self.history_ = pd.DataFrame(records, columns=names)
        self.n_iter_ = len(run.records)

    def plot_history(self, axes: Any = None) -> Any:
        """Draw step size, budget per step and spent epsilon over the batches."""
        check_is_fitted(self)
        return plot_history(self.history_, self.privacy_.guarantee, axes)


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
    """Return the position of one label; one that cannot be compared has none."""
    try:
        return index.get(value, UNKNOWN)
    except Exception:  # of any kind, and nobody is told of it
        return UNKNOWN


_NUMBERS = dict.fromkeys("fiub", "number")


def refuse_other_type(y: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse numbers where classes are text or dates, and the other way around.

    Bytes are no text either: one that is not ASCII could not be compared with any.
    """
    found, wanted = (
        _NUMBERS.get(array.dtype.kind, array.dtype.kind) for array in (y, classes)
    )
    loose = object in (y.dtype, classes.dtype)
    if found != wanted and not loose:
        # Not the dtype of texts, which tells how long the longest one is.
        raise ValueError(
            "Expected labels of the type of the classes "
            f"({classes.dtype.type.__name__}), got {y.dtype.type.__name__}; convert "
            "one of them. Nothing was spent."
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


def refuse_several(distributed: bool, **given: bool) -> None:
    """Refuse settings that need all rows in one process."""
    for name, asked in given.items():
        if distributed and asked:
            raise ValueError(
                f"Expected no {name} with distributed=True, got it: it needs all rows "
                "in one process. Nothing was spent."
            )


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


@contextmanager
def no_cell_shown() -> Iterator[None]:
    """Let no error say what a cell holds that is no number."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith("Complex data"):
            raise ValueError(
                "Complex data not supported: expected real numbers or text. Nothing "
                "was spent."
            ) from None
        if "could not convert" not in str(error):
            raise
        raise ValueError(
            "Expected numbers in all cells of X, got others; convert or leave out "
            "columns of text. Nothing was spent."
        ) from None


def as_column(values: Any, dtype: Any = None, *, typed: bool = False) -> NDArray[Any]:
    """Return labels, targets or weights as an array; no error shows one of them.

    A list has no type: one text in it would make texts of all others, and one row of
    another length lists of all other rows.  Its values stay as they are, unless
    ``typed`` says that they may tell their type; one alone in a row is that value.
    """
    if _is_list(values) and not typed:
        values, given = np.empty(len(values), dtype=object), values
        for place, value in enumerate(given):
            values[place] = _alone(value)
        return values
    shape = getattr(values, "shape", None)
    if shape is None:  # what only becomes an array
        shape = np.asarray(values).shape
    if len(shape) != 1 and shape[1:] != (1,):  # scikit-learn's words name both sizes
        raise ValueError(
            "y should be a 1d array of labels, targets or weights, got an array of "
            f"{len(shape)} dimensions. Nothing was spent."
        )
    with no_cell_shown():
        return column_or_1d(values, dtype=dtype, warn=True)


def _is_list(values: Any) -> bool:
    """Say whether values come one by one, without a type that they share."""
    typed = any(hasattr(values, name) for name in ("shape", "__array__"))
    return isinstance(values, Sequence) and not typed and not isinstance(values, str)


def _alone(value: Any) -> Any:
    """Return what a row of a column holds, if it holds one value."""
    if isinstance(value, np.ndarray) and value.ndim == 1:
        value = list(value)
    row = isinstance(value, list | tuple) and len(value) == 1
    return value[0] if row else value
