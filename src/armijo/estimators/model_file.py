# SPDX-License-Identifier: Apache-2.0
"""Keep a model in a JSON file that is safe to load from anybody.

Nothing in the file is code. A file made to do harm can at worst be refused with a
`TableError`.
"""

import json
import math
import os
from dataclasses import asdict, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, PlainValidator, Strict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from armijo import __version__, _files
from armijo.errors import TableError
from armijo.estimators.additive import (
    PrivateClassifier,
    PrivateRegressor,
    PrivateTableEstimator,
)
from armijo.estimators.linear import (
    PrivateLinearClassifier,
    PrivateLinearSVC,
    PrivateLogisticRegression,
)
from armijo.methods.additive_model import AdditiveModel
from armijo.tables.cells import listed, shown
from armijo.tables.coder import coded_columns
from armijo.tables.columns import NO_OTHER_KEYS, Finite, Target, explained
from armijo.tables.linear import encode
from armijo.tables.schema import Schema, read_small

MODEL_FORMAT = "armijo-model"
MODEL_VERSION = 3
LINEAR: dict[str, type[PrivateLinearClassifier]] = {
    "logistic": PrivateLogisticRegression,
    "svm": PrivateLinearSVC,
}
TABLE: dict[str, type[PrivateTableEstimator]] = {
    "classifier": PrivateClassifier,
    "regressor": PrivateRegressor,
}
MAX_MODEL_BYTES = 256 * 2**20
# Far above any trained weight, far below where a difference of scores overflows.
_MAX_SCORE = 1e100
_NUMBERS: TypeAdapter[Any] = TypeAdapter(list[Finite] | list[list[Finite]])


def _array(values: object) -> NDArray[np.float64]:
    """Return a read-only copy as floats, refusing what is not finite numbers."""
    plain = values.tolist() if isinstance(values, np.ndarray) else values
    try:
        array = np.array(_NUMBERS.validate_python(plain), dtype=np.float64)
    except ValueError:
        raise ValueError(
            "Expected coef and intercept to be arrays of finite numbers, got something "
            "else; the file was changed after training."
        ) from None
    array.setflags(write=False)
    return array


Numbers = Annotated[NDArray[np.float64], PlainValidator(_array)]


@dataclass(frozen=True, kw_only=True, eq=False, config=NO_OTHER_KEYS)
class LinearModel:
    """A linear classifier on the features of a schema.

    Attributes
    ----------
    kind : {"logistic", "svm"}
        What it was trained as.
    coef : array of shape (1, n_features) or (n_classes, n_features)
        One row for two classes, whose positive scores mean ``classes[1]``; one row per
        class for more.
    intercept : array of shape (1,) or (n_classes,)
        One number per row of ``coef``.
    data_norm : float or None
        The norm to which rows are scaled down before a score, if training did so.
    schema : Schema
        What the model was trained on; its classes are the model's.
    privacy : mapping
        The statement of the guarantee, as plain JSON values.
    created_by : str
        Name and version of the program that wrote the file.
    """

    created_by: Annotated[str, Strict()] = f"armijo {__version__}"
    kind: Literal["logistic", "svm"]
    intercept: Numbers
    coef: Numbers
    data_norm: Annotated[Finite, Field(gt=0)] | None
    privacy: dict[str, Any]
    schema: Schema

    def __post_init__(self) -> None:
        rows = 1 if len(self.classes) == 2 else len(self.classes)
        width = len(self.feature_names)
        if self.coef.shape != (rows, width) or self.intercept.shape != (rows,):
            raise ValueError(
                f"Expected coef to be an array of shape {(rows, width)} and intercept "
                f"one of shape {(rows,)}, got {self.coef.shape} and "
                f"{self.intercept.shape}; the model does not fit its schema."
            )
        largest = max(width * float(np.abs(self.coef).max()), *np.abs(self.intercept))
        if largest > _MAX_SCORE:
            raise ValueError(
                f"Expected scores of at most {_MAX_SCORE:g}, got weights that allow "
                "more; the file was changed after training."
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in order."""
        return self.schema.classes

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, one per column of ``coef``."""
        return self.schema.feature_names

    @cached_property
    def estimator(self) -> PrivateLinearClassifier:
        """The fitted estimator, whose classes are positions in those of the schema."""
        places = np.arange(len(self.classes))
        estimator = LINEAR[self.kind](classes=places.tolist())
        estimator.classes_ = places
        estimator.n_features_in_ = len(self.feature_names)
        estimator.coef_, estimator.intercept_ = self.coef, self.intercept
        estimator.data_norm_ = self.data_norm
        return estimator

    def rows(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Return the features of a table."""
        return encode(frame, self.schema, with_target=False)[0]

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the class of the largest score for every row."""
        return np.array(self.classes, dtype=np.str_)[self.estimator.predict(X)]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return a probability per class."""
        if self.kind != "logistic":
            raise TableError(
                f"Expected a logistic model, got kind {self.kind}; its scores are no "
                "probabilities."
            )
        return self.estimator.predict_proba(X)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `save_model` writes."""
        content = {option.name: getattr(self, option.name) for option in fields(self)}
        return {
            **_HEAD,
            **content,
            "classes": list(self.classes),
            "feature_names": list(self.feature_names),
            "intercept": self.intercept.tolist(),
            "coef": self.coef.tolist(),
            "schema": self.schema.to_dict(),
        }


_HEAD = {"format": MODEL_FORMAT, "version": MODEL_VERSION}


def _additive(values: object) -> AdditiveModel:
    if isinstance(values, AdditiveModel):
        return values
    raise ValueError(
        "Expected additive to be the values of a model, got something else; the file "
        "was changed after training."
    )


@dataclass(frozen=True, kw_only=True, eq=False, config=NO_OTHER_KEYS)
class TableModel:
    """An additive model of the columns of a schema.

    Attributes
    ----------
    kind : {"classifier", "regressor"}
        What it predicts.
    additive : AdditiveModel
        What was learned: released values only.
    schema : Schema
        What the model was trained on; its classes are the model's.
    privacy : mapping
        The statement of the guarantee, as plain JSON values.
    created_by : str
        Name and version of the program that wrote the file.
    """

    created_by: Annotated[str, Strict()] = f"armijo {__version__}"
    kind: Literal["classifier", "regressor"]
    additive: Annotated[Any, PlainValidator(_additive)]
    privacy: dict[str, Any]
    schema: Schema

    def __post_init__(self) -> None:
        objective = self.additive.objective
        number = isinstance(self.schema.response, Target)
        classes = len(self.classes) or 2
        if (
            _free(objective.columns) != _free(coded_columns(self.schema))
            or objective.regression != number
            or (self.kind == "regressor") != number
            or objective.n_classes != classes
        ):
            raise ValueError(
                "Expected a model of the columns and the target of its schema, got one "
                "of others; the file was changed after training."
            )
        if not np.abs(self.additive.weights).sum() <= _MAX_SCORE:
            raise ValueError(
                f"Expected scores of at most {_MAX_SCORE:g}, got weights that allow "
                "more; the file was changed after training."
            )

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in order; none of a regressor."""
        return self.schema.classes

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the columns after coding."""
        return tuple(part.info.name for part in self.schema.parts)

    @cached_property
    def estimator(self) -> PrivateTableEstimator:
        """The fitted estimator."""
        estimator = TABLE[self.kind](schema=self.schema)
        estimator.schema_, estimator.model_ = self.schema, self.additive
        estimator.columns_ = self.additive.objective.columns
        if isinstance(estimator, PrivateClassifier):
            estimator.classes_ = np.array(self.classes)
        return estimator

    def rows(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the table as it is: the model codes it."""
        return frame

    def predict(self, frame: pd.DataFrame) -> NDArray[Any]:
        """Return the class, or the number, of every row."""
        return np.asarray(self.estimator.predict(frame))

    def predict_proba(self, frame: pd.DataFrame) -> NDArray[np.float64]:
        """Return a probability per class."""
        if not self.additive.objective.log_odds:
            raise TableError(
                "Expected a model of probabilities, got one of "
                f"{'numbers' if self.kind == 'regressor' else 'scores'}."
            )
        assert isinstance(self.estimator, PrivateClassifier)
        return self.estimator.predict_proba(frame)

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `save_model` writes."""
        return {
            **_HEAD,
            "created_by": self.created_by,
            "kind": self.kind,
            "classes": list(self.classes),
            "feature_names": list(self.feature_names),
            "additive": self.additive.to_dict(),
            "privacy": self.privacy,
            "schema": self.schema.to_dict(),
        }


def _free(columns: tuple[Any, ...]) -> list[dict[str, Any]]:
    """Return columns as plain values, without their directions."""
    return [{**asdict(column), "monotone": 0} for column in columns]


Model = LinearModel | TableModel
_MODELS: dict[str, TypeAdapter[Any]] = {
    **dict.fromkeys(LINEAR, TypeAdapter(LinearModel)),
    **dict.fromkeys(TABLE, TypeAdapter(TableModel)),
}


def save_model(path: str | os.PathLike[str], model: Model) -> None:
    """Write a model, whole or not at all; an older file is replaced.

    Raises
    ------
    TableError
        If the statement is not plain values or the file cannot be written.
    """
    path = Path(path)
    try:
        text = json.dumps(model.to_dict(), allow_nan=False, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a privacy statement of plain, finite values, got "
            f"{shown(error)}; convert it first."
        ) from None
    try:
        _files.replace_file(path, f"{text}\n".encode())
    except OSError as error:
        raise TableError(
            f"{path}: Expected a place to write the model, got: {error.strerror}; "
            "nothing was changed there."
        ) from None


def load_model(path: str | os.PathLike[str]) -> Model:
    """Read a model that `save_model` wrote, trusting nothing in the file.

    Raises
    ------
    TableError
        If the file cannot be read or is not a whole, consistent model.
    """
    path = Path(path)
    try:
        document = json.loads(
            read_small(path, MAX_MODEL_BYTES).decode(),
            parse_float=_finite,
            parse_constant=_finite,
            object_pairs_hook=_unique_keys,
        )
        return _model(document)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a model in JSON, got {shown(error, most=200)}; is this "
            "the model file?"
        ) from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise TableError(f"Expected finite numbers, got {shown(text)}; do not use it.")
    return number


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a key that comes twice, since readers would differ on its value."""
    document = dict(pairs)
    if len(document) < len(pairs):
        raise TableError("Expected every key once, got one twice; do not use the file.")
    return document


def _model(document: Any) -> Model:
    """Build a model from a document of the right format and version."""
    if not isinstance(document, dict) or document.get("format") != MODEL_FORMAT:
        raise TableError(
            f'Expected a document of format "{MODEL_FORMAT}", got another; is this the '
            "model file?"
        )
    version = document.get("version")
    if type(version) is not int or version != MODEL_VERSION:
        raise TableError(
            f"Expected version {MODEL_VERSION}, got {shown(version)}; 1 is that of "
            "armijo 0.1, whose guarantees have gaps, which the changelog names, and 2 "
            "that of builds after it. Train the model again; the version of armijo "
            "that wrote the file can still read it."
        )
    document = {k: v for k, v in document.items() if k not in ("format", "version")}
    names = {key: document.pop(key, None) for key in ("classes", "feature_names")}
    schema = Schema.from_dict(document.get("schema"))
    parts = tuple(part.info.name for part in schema.parts)
    table = document.get("kind") in tuple(TABLE)
    public = {
        "classes": schema.classes,
        "feature_names": parts if table else schema.feature_names,
    }
    for key, values in names.items():
        if values != list(public[key]):
            raise TableError(
                f"Expected the {key} of the schema, {listed(public[key])}, "
                f"got {shown(values)}; the file was changed after training."
            )
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _MODELS:
        raise TableError(
            f"Expected kind to be one of {', '.join(_MODELS)}, got {shown(kind)}; the "
            "file was changed after training."
        )
    if kind in TABLE and "additive" in document:
        document["additive"] = _released_values(document["additive"], schema)
    try:
        return _MODELS[kind].validate_python(
            {"created_by": None, **document, "schema": schema}
        )
    except ValidationError as error:
        known = LinearModel if kind in LINEAR else TableModel
        raise TableError(explained(error, document, known)) from None


def _released_values(document: Any, schema: Schema) -> AdditiveModel:
    """Build what was learned, once its columns are known to be those of the schema.

    Columns first: their sizes decide how much memory a model takes.
    """
    changed = TableError(
        "Expected additive to be the values of a model of the schema's columns, got "
        "others; the file was changed after training."
    )
    try:
        columns = document["objective"]["columns"]
        if [{**column, "monotone": 0} for column in columns] != _free(
            coded_columns(schema)
        ):
            raise changed
        model = AdditiveModel.from_dict(document)
        same = json.dumps(model.to_dict()) == json.dumps(document)
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError):
        raise changed from None
    if not same:
        raise changed
    return model
