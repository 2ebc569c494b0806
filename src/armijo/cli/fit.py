# SPDX-License-Identifier: Apache-2.0
"""Fit a table: from a file and its public schema to a folder with model and report.

The folder holds ``model.json`` (safe to load), ``report.html``, ``report.json``, the
schema as it was used (``schema.toml``) and ``ledger.jsonl``, whose last line has the
digests of the others; while a run is unfinished also ``checkpoint.json`` and the secret
key that it is redone with after a crash, ``checkpoint.json.key``.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo.accounting.ledger import close_ledger
from armijo.accounting.run_key import destroy_key
from armijo.errors import TableError
from armijo.estimators import (
    PrivateLinearClassifier,
    PrivateLinearSVC,
    PrivateLogisticRegression,
)
from armijo.methods.base import StepRecord
from armijo.report.page import (
    CHECKPOINT,
    DIGESTED,
    LEDGER,
    MODEL,
    SCHEMA,
    digest,
    write_report,
    write_synced,
)
from armijo.tables import (
    ROW_BORDERS,
    LinearModel,
    Schema,
    encode,
    load_model,
    load_schema,
    read_table,
    save_model,
)
from armijo.training.replay import key_path

LEAKS = "leaky-diagnostics.csv"
ESTIMATORS: dict[str, type[PrivateLinearClassifier]] = {
    "logistic": PrivateLogisticRegression,
    "svm": PrivateLinearSVC,
}
Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class FitOutcome:
    """What a fit left."""

    folder: Path
    estimator: PrivateLinearClassifier
    model: LinearModel
    finished: bool


def fit_table(
    table: Path_,
    *,
    schema: Path_,
    out: Path_,
    target: str | None = None,
    kind: str = "logistic",
    parameters: Mapping[str, Any],
    callback: Callable[[StepRecord], object] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    multiline: bool = False,
) -> FitOutcome:
    """Train on a table and leave model, report and ledger in a folder.

    Parameters
    ----------
    table, schema, out : path
        The sensitive table, its reviewed public schema, and the folder to make.
    target : str or None
        The column to learn; it must be the schema's.
    kind : {"logistic", "svm"}
        The model.
    parameters : mapping
        Parameters of the estimator (epsilon, delta, method, ...).
    callback : callable or None
        Sees each step record; returning True stops the run, which can be resumed.
    resume : bool
        Go on with the unfinished run in the folder.
    overwrite : bool
        Start anew in a folder that exists; what is there moves aside, nothing is
        deleted.
    multiline : bool
        Whether quoted cells of a CSV file may hold line breaks; the guarantee then
        names what it assumes of them.

    Raises
    ------
    TableError
        For anything wrong with the files, before any budget is spent.  A row that does
        not fit the schema is blank and no error; :func:`check_table` names it.
    """
    if kind not in ESTIMATORS:
        raise TableError(f"Expected kind to be logistic or svm, got {kind!r}.")
    public = _public_schema(schema, target)
    _check_classes(public, kind)
    X, y = encode(read_table(table, multiline=multiline), public)
    folder = Path(out)
    _check_folder(folder, resume=resume, overwrite=overwrite)
    stopped = _StopWatch(callback)
    estimator = ESTIMATORS[kind](
        **parameters,
        classes=list(range(len(public.classes))),
        n_rows=public.n_rows,
        ledger=folder / LEDGER,
        callback=stopped,
    )
    estimator.check_fit(X, y)
    _prepare(folder, overwrite=overwrite and not resume)
    estimator.fit_resumable(
        X,
        np.asarray(y),
        checkpoint=folder / CHECKPOINT,
        fingerprint=_fingerprint(public, kind, parameters, multiline),
        resume=resume,
    )
    estimator.set_params(callback=None)
    if multiline:
        estimator.privacy_ = estimator.privacy_.assuming(ROW_BORDERS)
    model = _model(estimator, public, kind)
    if not stopped.stopped:
        _finish(folder, estimator, model, kind)
    return FitOutcome(folder, estimator, model, finished=not stopped.stopped)


def _fingerprint(
    schema: Schema, kind: str, parameters: Mapping[str, Any], multiline: bool
) -> dict[str, Any]:
    """Return what ledger and checkpoint must share with the run."""
    named = {"schema": schema.digest(), "kind": kind, "parameters": dict(parameters)}
    return {**named, "multiline": True} if multiline else named


class _StopWatch:
    """Remembers whether the callback asked to stop."""

    def __init__(self, callback: Callable[[StepRecord], object] | None) -> None:
        self._callback = callback
        self.stopped = False

    def __call__(self, record: StepRecord) -> bool:
        """Pass the record on."""
        self.stopped = self._callback is not None and self._callback(record) is True
        return self.stopped


def _public_schema(path: Path_, target: str | None) -> Schema:
    """Load the reviewed schema and check the target against it."""
    schema = load_schema(path)
    if target is not None and target != schema.target:
        raise TableError(
            f"Expected the target of the schema, {schema.target!r}, got {target!r}; "
            "name that column or change the schema. Nothing was spent."
        )
    return schema


def _check_classes(schema: Schema, kind: str) -> None:
    """Refuse classes that the model does not take; which ones occur is private."""
    if kind == "svm" and len(schema.classes) > 2:
        raise TableError(
            f"Expected two classes for svm, got {len(schema.classes)}; use the "
            "logistic model for more. Nothing was spent."
        )


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder in use, and a resume without an unfinished run."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise TableError(f"Expected a folder at {place}, got a file; name another.")
    if resume:
        if not (folder / CHECKPOINT).is_file():
            found = "a finished run" if (folder / MODEL).exists() else "no run"
            raise TableError(
                f"Asked to resume in {folder}, found {found}; start without --resume."
            )
        return
    if folder.is_dir() and any(folder.iterdir()) and not overwrite:
        raise TableError(
            f"The folder {folder} exists and is not empty; give --overwrite to move "
            "its content aside, --resume to go on with an unfinished run there, or "
            "another folder. Nothing was spent."
        )


def _prepare(folder: Path, *, overwrite: bool) -> None:
    """Make the folder; move an earlier run aside, since its ledger must not be lost.

    Its key is destroyed: that run is over.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if overwrite:
        destroy_key(key_path(folder / CHECKPOINT))
    content = [
        item for item in folder.iterdir() if not item.name.startswith("earlier-")
    ]
    if not overwrite or not content:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for item in content:
        item.rename(aside / item.name)


def _model(
    estimator: PrivateLinearClassifier, schema: Schema, kind: str
) -> LinearModel:
    """Return the fitted weights with their schema and privacy statement."""
    from armijo import __version__

    return LinearModel(
        kind=kind,  # type: ignore[arg-type]
        coef=estimator.coef_,
        intercept=estimator.intercept_,
        schema=schema,
        privacy=estimator.privacy_.to_dict(),
        created_by=f"armijo {__version__}",
        data_norm=estimator.data_norm_,
    )


def _finish(
    folder: Path, estimator: PrivateLinearClassifier, model: LinearModel, kind: str
) -> None:
    """Write schema, report and model, close the ledger, then drop the checkpoint.

    The model comes last, and makes all names in the folder durable: without it a crash
    of the machine could take it back and leave neither model nor checkpoint.
    """
    if estimator.leaky_diagnostics:
        _write_leaks(folder / LEAKS, estimator.leaky_diagnostics_)
    write_synced(folder / SCHEMA, model.schema.to_toml())
    write_report(folder, estimator, model)
    save_model(folder / MODEL, model)
    close_ledger(folder / LEDGER, {name: digest(folder / name) for name in DIGESTED})
    (folder / CHECKPOINT).unlink(missing_ok=True)


def _write_leaks(path: Path, exact: pd.DataFrame) -> None:
    """Write exact values; the file says of itself that it must not be released."""
    warning = "# NOT PRIVATE: exact values of the rows; never release this file.\n"
    write_synced(path, warning + exact.to_csv(index=False), secret=True)


def check_table(table: Path_, *, schema: Path_, multiline: bool = False) -> int:
    """Return the number of rows, or raise a `TableError` that names a row at fault.

    For the eyes of the owner of the table, outside of any guarantee: a fit takes such
    rows for blank and says nothing.
    """
    frame = read_table(table, multiline=multiline)
    encode(frame, load_schema(schema, require_reviewed=False), strict=True)
    return len(frame)


def predict_table(
    model: Path_,
    table: Path_,
    *,
    probabilities: bool = False,
    multiline: bool = False,
) -> pd.DataFrame:
    """Predict every row of a table with a model that ``fit`` left.

    ``model`` is the file or the folder it is in.  A row that does not fit the schema
    has no prediction and is an error.
    """
    path = Path(model)
    loaded = load_model(path / MODEL if path.is_dir() else path)
    frame = read_table(table, multiline=multiline)
    X, _ = encode(frame, loaded.schema, with_target=False, strict=True)
    columns: dict[str, NDArray[Any]] = {"prediction": loaded.predict(X)}
    if probabilities:
        each = loaded.predict_proba(X)
        for k, name in enumerate(loaded.classes):
            columns[f"probability={name}"] = each[:, k]
    return pd.DataFrame(columns)
