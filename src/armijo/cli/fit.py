# SPDX-License-Identifier: Apache-2.0
"""Fit a table: from a file and its public schema to a folder with model and report.

The folder holds ``model.json`` (safe to load), ``report.html``, ``report.json``, the
schema as it was used (``schema.toml``) and ``ledger.jsonl``, whose last line has the
digests of the others; while a run is unfinished also ``checkpoint.safetensors`` and the
secret key that it is redone with after a crash, ``checkpoint.safetensors.key``.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from armijo import _validate
from armijo._files import replace_file
from armijo.accounting.ledger import close_ledger
from armijo.cli.dry_run import planned_fit
from armijo.engines import ENGINES, EngineTable, engine_table
from armijo.errors import ModelWarning, TableError
from armijo.estimators.additive import PrivateTableEstimator
from armijo.estimators.encoders import ScaledBlock
from armijo.estimators.linear import PrivateLinearClassifier
from armijo.estimators.model_file import (
    LINEAR,
    TABLE,
    LinearModel,
    Model,
    TableModel,
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
from armijo.tables.coder import code_column, code_table, refuse_columns
from armijo.tables.columns import Fault, Label, Person, Target
from armijo.tables.frames import with_person
from armijo.tables.linear import refuse_no_classes, refuse_unbounded, unbounded
from armijo.tables.stream import StreamedTable, find_stream
from armijo.training.replay import destroy_key, key_path

Estimator = PrivateTableEstimator | PrivateLinearClassifier
LEAKS = "leaky-diagnostics.csv"
Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class FitOutcome:
    """What a fit left."""

    folder: Path
    estimator: Estimator
    model: Model | None
    finished: bool


def fit_table(
    table: Path_,
    *,
    schema: Path_,
    out: Path_,
    target: str | None = None,
    kind: str = "additive",
    parameters: Mapping[str, Any],
    callback: Callable[[StepRecord], object] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    multiline: bool = False,
    memory: int | None = None,
    engine: str | None = None,
    scheduler: str | None = None,
) -> FitOutcome:
    """Train on a table and leave model, report and ledger in a folder.

    Parameters
    ----------
    table, schema, out : path
        The sensitive table (a file, or a folder, pattern or address of Parquet files,
        which are streamed), its reviewed public schema, and the folder to make.
    target : str or None
        The column to learn; it must be the schema's.
    kind : {"additive", "logistic", "svm"}
        The model: :class:`armijo.PrivateClassifier` or, for a target that is a number,
        :class:`armijo.PrivateRegressor`; or a linear one on public bounds.
    parameters : mapping
        Parameters of the estimator (epsilon, delta, ...) as JSON values; of a linear
        one also ``method`` and its ``options``.
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
    memory : int or None
        Bytes of streamed rows that may be kept; None is half of what is free.
    engine, scheduler : str or None
        Whose workers read and sum the Parquet files, and where
        (:func:`armijo.engines.engine_table`); None is this process.

    Raises
    ------
    TableError
        For anything wrong with the files, before any budget is spent.  A cell that does
        not fit the schema is missing and no error; :func:`check_table` names it.
    """
    _validate.choice(("additive", *LINEAR), kind=kind)
    public = _public_schema(schema, target, kind, parameters.get("person"))
    folder = Path(out)
    _check_folder(folder, resume=resume, overwrite=overwrite)
    stopped = False

    def watched(record: StepRecord) -> bool:
        nonlocal stopped
        stopped = callback is not None and callback(record) is True
        return stopped

    named: dict[str, Any] = {"schema": public.digest(), "kind": kind}
    named["parameters"] = dict(parameters)
    named |= {"multiline": True} if multiline else {}
    named |= {} if engine is None else {"engine": engine}
    files: dict[str, Any] = {
        "checkpoint": folder / CHECKPOINT,
        "fingerprint": named,
        "resume": resume,
        "ready": partial(_prepare, folder, overwrite=overwrite and not resume),
        "memory": memory,
    }
    given = {**parameters, "ledger": folder / LEDGER, "callback": watched}
    estimator = _estimator(kind, public, given)
    with _opened(table, engine, scheduler, memory, multiline) as rows:
        if isinstance(estimator, PrivateTableEstimator):
            with warnings.catch_warnings():  # the report and the outcome have them
                warnings.simplefilter("ignore", ModelWarning)
                estimator.fit_resumable(rows, **files)
        else:
            estimator.fit_resumable(*_scaled(rows, public), **files)
    estimator.set_params(callback=None)
    if multiline:
        estimator.privacy_ = estimator.privacy_.assuming(ROW_BORDERS)
    model = _model(kind, estimator, public)
    if model is not None and not stopped:
        linear = {} if kind == "additive" else {"method": "auto", "options": {}}
        _finish(folder, estimator, model, {**linear, **parameters})
    return FitOutcome(folder, estimator, model, finished=not stopped)


@contextmanager
def _opened(
    table: Path_,
    engine: str | None,
    scheduler: str | None,
    memory: int | None,
    multiline: bool,
) -> Iterator[pd.DataFrame | StreamedTable | EngineTable]:
    """Yield the rows: read whole, streamed, or with the workers of an engine."""
    _refuse_engine(engine, scheduler)
    if engine is not None:
        with engine_table(table, engine, scheduler) as rows:
            yield rows
        return
    stream = find_stream(table, memory=memory)
    yield read_table(table, multiline=multiline) if stream is None else stream


def _refuse_engine(engine: str | None, scheduler: str | None) -> None:
    """Refuse an engine that is none, and a scheduler without one."""
    if engine is not None:
        _validate.choice(ENGINES, engine=engine)
    elif scheduler is not None:
        raise ValueError(
            f"Expected an engine with the scheduler {scheduler!r}, got none; add "
            "--engine dask or --engine spark. Nothing was spent."
        )


def _scaled(
    rows: pd.DataFrame | StreamedTable | EngineTable, public: Schema
) -> tuple[Any, ...]:
    """Return the rows of a linear model, scaled by public bounds, and its labels."""
    if isinstance(rows, pd.DataFrame):
        X, y = encode(rows, public)
        return X, np.asarray(y)
    refuse_columns(rows.head(), public, empty=True)
    return (replace(rows, encode=ScaledBlock(public)),)


def dry_run(
    table: Path_,
    *,
    schema: Path_,
    target: str | None = None,
    kind: str = "additive",
    parameters: Mapping[str, Any],
    memory: int | None = None,
    engine: str | None = None,
    scheduler: str | None = None,
) -> Mapping[str, Any]:
    """Return what :func:`fit_table` would do, from metadata; nothing is spent."""
    _refuse_engine(engine, scheduler)
    _validate.choice(("additive", *LINEAR), kind=kind)
    public = _public_schema(schema, target, kind, parameters.get("person"))
    estimator = _estimator(kind, public, parameters)
    return planned_fit(
        table, public, estimator, kind=kind, memory=memory, engine=engine
    )


def _estimator(kind: str, public: Schema, parameters: Mapping[str, Any]) -> Estimator:
    """Return the estimator: of a table, or of features scaled by public bounds.

    A linear model without all bounds is one of a table, which learns them; with them
    its classes are positions.
    """
    if kind == "additive":
        number = isinstance(public.response, Target)
        return TABLE["regressor" if number else "classifier"](
            schema=public, **parameters
        )
    refuse_no_classes(public)
    given = {"method": "auto", "options": {}, **parameters}
    method = make_method(given.pop("method"), given.pop("options"))
    linear = LINEAR[kind](**given, method=method, n_rows=public.n_rows)
    if unbounded(public) and linear.learns_scales:
        return linear.table_estimator(schema=public)
    refuse_unbounded(public)
    return linear.set_params(classes=list(range(len(public.classes))))


def _model(kind: str, estimator: Estimator, public: Schema) -> Model | None:
    """Return what is kept of a run; an additive one has a model at its end only."""
    privacy = estimator.privacy_.to_dict()
    if isinstance(estimator, PrivateTableEstimator):
        if not hasattr(estimator, "model_"):
            return None
        number = isinstance(public.response, Target)
        return TableModel(
            kind="regressor" if number else "classifier",
            additive=estimator.model_,
            schema=public,
            privacy=privacy,
        )
    return LinearModel(
        kind=kind,  # type: ignore[arg-type]
        coef=estimator.coef_,
        intercept=estimator.intercept_,
        data_norm=estimator.data_norm_,
        schema=public,
        privacy=privacy,
    )


def _public_schema(
    path: Path_, target: str | None, kind: str, person: str | None
) -> Schema:
    """Load the reviewed schema; which of its classes occur is private."""
    schema = with_person(load_schema(path), person)
    if schema.target is None or target not in (None, schema.target):
        raise TableError(
            f"Expected the target of the schema, {schema.target!r}, got {target!r}; "
            "name that column or change the schema. Nothing was spent."
        )
    if kind == "svm" and len(schema.classes) > 2:
        raise TableError(
            f"Expected two classes for svm, got {len(schema.classes)}; use the "
            "logistic model for more. Nothing was spent."
        )
    if kind in LINEAR and schema.person is not None:
        raise TableError(
            f"Expected rows of different people, got the person column "
            f"{schema.person!r}: linear models have no weights for several rows of one "
            "person. Use the default model. Nothing was spent."
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
    estimator: Estimator,
    model: Model,
    asked: Mapping[str, Any],
) -> None:
    """Write schema, report and model, close the ledger, then drop the checkpoint."""
    if isinstance(estimator, PrivateLinearClassifier) and estimator.leaky_diagnostics:
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

    ``model`` is the file or the folder it is in; the table is read as that of a fit,
    folders, patterns and addresses of Parquet files block by block.  Cells that are
    missing, or do not fit the schema, are missing to the model as well.
    """
    path = Path(model)
    loaded = load_model(path / MODEL if path.is_dir() else path)
    stream = find_stream(table)
    if stream is None:
        return _predicted(loaded, read_table(table, multiline=multiline), probabilities)
    parts = (_predicted(loaded, f, probabilities) for f in stream.frames_with(None))
    return pd.concat(parts, ignore_index=True)


def _predicted(model: Model, frame: pd.DataFrame, probabilities: bool) -> pd.DataFrame:
    rows: Any = model.rows(frame)
    columns: dict[str, NDArray[Any]] = {"prediction": model.predict(rows)}
    if probabilities:
        of_class = model.predict_proba(rows).T
        for name, probability in zip(model.classes, of_class, strict=True):
            columns[f"probability={name}"] = probability
    return pd.DataFrame(columns)
