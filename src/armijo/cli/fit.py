# SPDX-License-Identifier: Apache-2.0
"""Fit a table: from a file and its public schema to a folder with model and report.

The folder holds ``model.json`` (safe to load), ``report.html``, ``report.json``, the
schema as it was used (``schema.toml``) and ``ledger.jsonl``, whose last line has the
digests of the others; while a run is unfinished also ``checkpoint.safetensors`` and the
secret key that it is redone with after a crash, ``checkpoint.safetensors.key``.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo._files import replace_file
from armijo.accounting.ledger import close_ledger
from armijo.errors import TableError
from armijo.estimators.linear import PrivateLinearClassifier
from armijo.estimators.model_file import (
    KINDS,
    LinearModel,
    estimator_class,
    load_model,
    save_model,
)
from armijo.methods.base import StepRecord
from armijo.registry import make_method
from armijo.report.page import (
    CHECKPOINT,
    DIGESTED,
    LEDGER,
    MODEL,
    SCHEMA,
    digest,
    write_report,
)
from armijo.tables import ROW_BORDERS, Schema, encode, load_schema, read_table
from armijo.tables.coder import code_column, code_table
from armijo.tables.columns import Fault, Label, Person, Target
from armijo.training.replay import destroy_key, key_path

LEAKS = "leaky-diagnostics.csv"
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
        Parameters of the estimator (epsilon, delta, method, ...) as JSON values, and
        ``options`` of the method.
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
    if kind not in KINDS:
        raise TableError(f"Expected kind to be logistic or svm, got {kind!r}.")
    public = _public_schema(schema, target, kind)
    X, y = encode(read_table(table, multiline=multiline), public)
    folder = Path(out)
    _check_folder(folder, resume=resume, overwrite=overwrite)
    stopped = False

    def watched(record: StepRecord) -> bool:
        nonlocal stopped
        stopped = callback is not None and callback(record) is True
        return stopped

    asked = {"method": "auto", "options": {}, **parameters}
    given = dict(asked)
    method = make_method(given.pop("method"), given.pop("options"))
    estimator = estimator_class(kind)(
        **given,
        method=method,
        classes=list(range(len(public.classes))),
        n_rows=public.n_rows,
        ledger=folder / LEDGER,
        callback=watched,
    )
    named = {"schema": public.digest(), "kind": kind, "parameters": dict(parameters)}
    estimator.fit_resumable(
        X,
        np.asarray(y),
        checkpoint=folder / CHECKPOINT,
        fingerprint={**named, "multiline": True} if multiline else named,
        resume=resume,
        ready=partial(_prepare, folder, overwrite=overwrite and not resume),
    )
    estimator.set_params(callback=None)
    if multiline:
        estimator.privacy_ = estimator.privacy_.assuming(ROW_BORDERS)
    model = LinearModel(
        kind=kind,  # type: ignore[arg-type]
        coef=estimator.coef_,
        intercept=estimator.intercept_,
        data_norm=estimator.data_norm_,
        schema=public,
        privacy=estimator.privacy_.to_dict(),
    )
    if not stopped:
        _finish(folder, estimator, model, asked)
    return FitOutcome(folder, estimator, model, finished=not stopped)


def _public_schema(path: Path_, target: str | None, kind: str) -> Schema:
    """Load the reviewed schema; which of its classes occur is private."""
    schema = load_schema(path)
    if target is not None and target != schema.target:
        raise TableError(
            f"Expected the target of the schema, {schema.target!r}, got {target!r}; "
            "name that column or change the schema. Nothing was spent."
        )
    if kind == "svm" and len(schema.classes) > 2:
        raise TableError(
            f"Expected two classes for svm, got {len(schema.classes)}; use the "
            "logistic model for more. Nothing was spent."
        )
    return schema


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
    elif folder.is_dir() and any(folder.iterdir()) and not overwrite:
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
    if not overwrite:
        return
    destroy_key(key_path(folder / CHECKPOINT))
    content = [i for i in folder.iterdir() if not i.name.startswith("earlier-")]
    if not content:
        return
    number = 1
    while (folder / f"earlier-{number}").exists():
        number += 1
    aside = folder / f"earlier-{number}"
    aside.mkdir()
    for item in content:
        item.rename(aside / item.name)


def _finish(
    folder: Path,
    estimator: PrivateLinearClassifier,
    model: LinearModel,
    asked: Mapping[str, Any],
) -> None:
    """Write schema, report and model, close the ledger, then drop the checkpoint."""
    if estimator.leaky_diagnostics:
        warning = "# NOT PRIVATE: exact values of the rows; never release this file.\n"
        exact = warning + estimator.leaky_diagnostics_.to_csv(index=False)
        replace_file(folder / LEAKS, exact.encode(), mode=0o600)
    replace_file(folder / SCHEMA, model.schema.to_toml().encode())
    write_report(folder, estimator, model, asked)
    save_model(folder / MODEL, model)
    close_ledger(folder / LEDGER, {name: digest(folder / name) for name in DIGESTED})
    (folder / CHECKPOINT).unlink(missing_ok=True)


def check_table(
    table: Path_, *, schema: Path_, multiline: bool = False
) -> tuple[int, list[Fault]]:
    """Return the number of rows, and the cells that do not fit the schema.

    For the eyes of the owner of the table, outside of any guarantee: a fit takes such
    cells for missing, other or blank and says nothing.
    """
    public = load_schema(schema, require_reviewed=False)
    frame = read_table(table, multiline=multiline)
    faults: list[Fault] = []
    code_table(frame, public, faults=faults)
    for column in public.columns:
        if isinstance(column, Label | Target | Person):
            code_column(frame, column, faults)
    return len(frame), faults


def predict_table(
    model: Path_,
    table: Path_,
    *,
    probabilities: bool = False,
    multiline: bool = False,
) -> pd.DataFrame:
    """Predict every row of a table with a model that ``fit`` left.

    ``model`` is the file or the folder it is in.  Cells that are missing, or do not fit
    the schema, are missing to the model as well.
    """
    path = Path(model)
    loaded = load_model(path / MODEL if path.is_dir() else path)
    frame = read_table(table, multiline=multiline)
    X, _ = encode(frame, loaded.schema, with_target=False)
    columns: dict[str, NDArray[Any]] = {"prediction": loaded.predict(X)}
    if probabilities:
        of_class = loaded.predict_proba(X).T
        for name, probability in zip(loaded.classes, of_class, strict=True):
            columns[f"probability={name}"] = probability
    return pd.DataFrame(columns)
