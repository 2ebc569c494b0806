# SPDX-License-Identifier: Apache-2.0
"""Keep a linear model in a JSON file that is safe to load from anybody.

Nothing in the file is code. A file made to do harm can at worst be refused with a
`TableError`. Prediction is plain NumPy.
"""

import dataclasses
import importlib.metadata
import json
import math
import os
import tempfile
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from armijo._files import sync_folder
from armijo.data.query import clipped_rows
from armijo.errors import TableError
from armijo.tables.cells import listed, shown
from armijo.tables.columns import check_keys
from armijo.tables.schema import Schema

MODEL_FORMAT = "armijo-model"
MODEL_VERSION = 1
MODEL_KINDS = ("logistic", "svm")
MAX_MODEL_BYTES = 256 * 2**20
# Far above any trained weight, far below where a difference of scores overflows.
_MAX_SCORE = 1e100
_CONTENT = ("kind", "classes", "coef", "intercept", "schema", "privacy")
_FRAME = ("format", "version", "created_by", "feature_names")
_OPTIONAL = ("data_norm",)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LinearModel:
    """A linear classifier on the features of a schema.

    Parameters
    ----------
    kind : {"logistic", "svm"}
        What it was trained as.
    classes : sequence of str
        The classes of the schema, in order.
    coef : array of shape (1, n_features) or (n_classes, n_features)
        One row for two classes, whose positive scores mean ``classes[1]``; one row per
        class for more.
    intercept : array of shape (1,) or (n_classes,)
        One number per row of ``coef``.
    schema : Schema
        What the model was trained on.
    privacy : mapping
        The statement of the guarantee, as plain JSON values.
    created_by : str
        Name and version of the program that wrote the file.
    data_norm : float or None
        The norm to which rows are scaled down before a score, if training did so.
    """

    kind: str
    classes: tuple[str, ...]
    coef: NDArray[np.float64]
    intercept: NDArray[np.float64]
    schema: Schema
    privacy: Mapping[str, object]
    created_by: str = ""
    data_norm: float | None = None

    def __post_init__(self) -> None:
        """Check kind, classes and sizes against the schema, and freeze the arrays."""
        if self.kind not in MODEL_KINDS:
            raise TableError(
                f"Expected kind to be one of {', '.join(MODEL_KINDS)}, got "
                f"{shown(self.kind)}; train the model again."
            )
        object.__setattr__(self, "classes", tuple(self.classes))
        if self.classes != self.schema.classes:
            raise TableError(
                f"Expected the classes of the schema, {listed(self.schema.classes)}, "
                f"got {listed(self.classes)}; the file was changed after training."
            )
        rows = 1 if len(self.classes) == 2 else len(self.classes)
        width = len(self.schema.feature_names)
        object.__setattr__(self, "coef", _frozen("coef", self.coef, (rows, width)))
        object.__setattr__(
            self, "intercept", _frozen("intercept", self.intercept, (rows,))
        )
        norm = self.data_norm
        if norm is not None and not (_only_numbers(norm, 0) and 0 < norm < math.inf):
            raise TableError(
                f"Expected data_norm to be a positive number, got {shown(norm)}; "
                "the file was changed after training."
            )
        largest = max(width * float(np.abs(self.coef).max()), *np.abs(self.intercept))
        if largest > _MAX_SCORE:
            raise TableError(
                f"Expected scores of at most {_MAX_SCORE:g}, got weights that allow "
                "more; the file was changed after training."
            )

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the features, one per column of ``coef``."""
        return self.schema.feature_names

    def decision_function(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return the scores X coef' + intercept, shape (n,) for two classes."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2 or X.shape[1] != self.coef.shape[1]:
            raise TableError(
                f"Expected rows of {self.coef.shape[1]} features, got an array of "
                f"shape {X.shape}; encode the table with the schema of the model."
            )
        scores = clipped_rows(X, self.data_norm) @ self.coef.T + self.intercept
        return scores[:, 0] if len(self.classes) == 2 else scores

    def predict(self, X: ArrayLike) -> NDArray[np.str_]:
        """Return the class of the largest score for every row."""
        scores = self.decision_function(X)
        best = scores.argmax(axis=1) if scores.ndim == 2 else (scores >= 0).astype(int)
        return np.array(self.classes, dtype=np.str_)[best]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Return a probability per class: the logistic function, or softmax.

        With s the score, two classes have P(classes[1]) = 1 / (1 + exp(-s)); more have
        P(k) = exp(s_k) / sum_j exp(s_j).
        """
        if self.kind != "logistic":
            raise TableError(
                f"Expected a logistic model, got kind {self.kind}; its scores are no "
                "probabilities, use decision_function."
            )
        scores = self.decision_function(X)
        if scores.ndim == 1:
            scores = np.column_stack((np.zeros_like(scores), scores))
        # Less the largest score, so that no exponential overflows.
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        return weights

    def to_dict(self) -> dict[str, object]:
        """Return the document that `save_model` writes."""
        norm = {} if self.data_norm is None else {"data_norm": self.data_norm}
        return {
            **norm,
            "format": MODEL_FORMAT,
            "version": MODEL_VERSION,
            "created_by": self.created_by,
            "kind": self.kind,
            "classes": list(self.classes),
            "feature_names": list(self.feature_names),
            "intercept": self.intercept.tolist(),
            "coef": self.coef.tolist(),
            "privacy": dict(self.privacy),
            "schema": self.schema.to_dict(),
        }


def _frozen(name: str, values: object, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Return a read-only copy as floats, refusing other shapes and infinite values."""
    try:
        typed = isinstance(values, np.ndarray) or _only_numbers(values, len(shape))
        array = np.array(values if typed else math.nan, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.array(math.nan)
    if array.shape != shape or not np.isfinite(array).all():
        raise TableError(
            f"Expected {name} to be an array of shape {shape} of finite numbers, got "
            "something else; the model does not fit its schema."
        )
    array.setflags(write=False)
    return array


def _only_numbers(values: object, depth: int) -> bool:
    """Tell whether lists, nested so deep, hold numbers: no text, no truth values."""
    if depth == 0:
        return isinstance(values, Real) and not isinstance(values, bool)
    return isinstance(values, list | tuple) and all(
        _only_numbers(value, depth - 1) for value in values
    )


def save_model(
    path: str | os.PathLike[str], model: LinearModel | Mapping[str, Any]
) -> None:
    """Write a model, whole or not at all.

    Parameters
    ----------
    path : path
        The file; an older one is replaced.
    model : LinearModel or mapping
        A mapping needs the keys kind, classes, coef, intercept, schema and privacy.

    Raises
    ------
    TableError
        If the parts do not fit together or the file cannot be written.
    """
    path = Path(path)
    if not isinstance(model, LinearModel):
        check_keys(
            "model", model, allowed=_CONTENT + _FRAME + _OPTIONAL, required=_CONTENT
        )
        model = _build({"created_by": _created_by(), **model})
    try:
        text = json.dumps(model.to_dict(), allow_nan=False, indent=1)
    except (TypeError, ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a privacy statement of plain, finite values, got "
            f"{shown(error)}; convert it first."
        ) from None
    try:
        _replace_file(path, text + "\n")
    except OSError as error:
        raise TableError(
            f"{path}: Expected a place to write the model, got: {error.strerror}; "
            "nothing was changed there."
        ) from None


def load_model(path: str | os.PathLike[str]) -> LinearModel:
    """Read a model that `save_model` wrote, trusting nothing in the file.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    TableError
        If the file cannot be read or is not a whole, consistent model.
    """
    path = Path(path)
    try:
        return _build(_parse(path))
    except TableError as error:
        raise TableError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a model in JSON, got {shown(error, most=200)}; is this "
            "the model file?"
        ) from None
    except OSError as error:
        raise TableError(
            f"{path}: Expected a file to read, got: {error.strerror}; check the path."
        ) from None


def _parse(path: Path) -> dict[str, Any]:
    """Return the document of a model file, of the right format and version."""
    if path.stat().st_size > MAX_MODEL_BYTES:
        raise TableError(
            f"Expected at most {MAX_MODEL_BYTES} bytes, got {path.stat().st_size}; is "
            "this the model file?"
        )
    document = json.loads(
        path.read_bytes().decode(),
        parse_float=_finite,
        parse_constant=_finite,
        object_pairs_hook=_unique_keys,
    )
    if not isinstance(document, dict) or document.get("format") != MODEL_FORMAT:
        raise TableError(
            f'Expected a document of format "{MODEL_FORMAT}", got another; is this the '
            "model file?"
        )
    version = document.get("version")
    if type(version) is not int or version != MODEL_VERSION:
        raise TableError(
            f"Expected version {MODEL_VERSION}, got {shown(version)}; use the armijo "
            "that wrote it."
        )
    keys = _FRAME + _CONTENT
    check_keys("model", document, allowed=keys + _OPTIONAL, required=keys)
    return document


def _finite(text: str) -> float:
    """Return a number of a JSON file, refusing NaN and what is too large."""
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


def _build(document: Mapping[str, Any]) -> LinearModel:
    """Build a model from a document, checking the types of its parts."""
    schema, privacy = document["schema"], document["privacy"]
    classes, created_by = document["classes"], document["created_by"]
    if not isinstance(schema, Schema):
        schema = Schema.from_dict(schema)
    if not isinstance(classes, list | tuple) or not isinstance(created_by, str):
        raise TableError(
            f"Expected classes to be a list and created_by to be text, got "
            f"{shown(classes)} and {shown(created_by)}."
        )
    if not isinstance(privacy, Mapping):
        raise TableError(
            f"Expected privacy to be a statement of keys and values, got "
            f"{shown(privacy)}."
        )
    names = document.get("feature_names", schema.feature_names)
    if not isinstance(names, list | tuple) or tuple(names) != schema.feature_names:
        raise TableError(
            f"Expected the feature names of the schema, got {shown(names)}; the model "
            "does not fit its schema."
        )
    return LinearModel(
        kind=document["kind"],
        classes=tuple(classes),
        coef=document["coef"],
        intercept=document["intercept"],
        schema=schema,
        privacy=privacy,
        created_by=created_by,
        data_norm=document.get("data_norm"),
    )


def _created_by() -> str:
    """Return the name and version of this package."""
    try:
        return f"armijo {importlib.metadata.version('armijo')}"
    except importlib.metadata.PackageNotFoundError:
        return "armijo"


def _replace_file(path: Path, text: str) -> None:
    """Write beside the file and rename, so that a crash leaves the old one whole.

    On return the new one is there for good, its name included.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    sync_folder(os.path.abspath(path))
