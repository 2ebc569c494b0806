# SPDX-License-Identifier: Apache-2.0
"""Verify a run: its ledger, and every file that it left against the closing line."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from armijo.accounting.ledger import MAGIC, LedgerView, read_ledger
from armijo.accounting.verify import Fault, Verification, verify_ledger
from armijo.errors import ArmijoError, TableError
from armijo.estimators.model_file import Model, TableModel, load_model
from armijo.report.page import (
    CHECKPOINT,
    DIGESTED,
    LEDGER,
    MODEL,
    REPORT_JSON,
    SCHEMA,
    digest,
)
from armijo.tables import load_schema
from armijo.tables.cells import shown
from armijo.training.checkpoint import read_released
from armijo.training.run import RunFiles, released

PARAMETERS = "parameters"
_CLAIMS = (
    *("epsilon", "delta", "relation", "accountant", "guarantee"),
    *("broken_premises", "sampler", "arithmetic", "unit"),
)


def verify_run(
    run: str | os.PathLike[str], *, ledger: str | os.PathLike[str] | None = None
) -> Verification:
    """Verify a finished run, reading only.

    Parameters
    ----------
    run : path
        The folder of a fit, a ledger file, or the checkpoint of an estimator or a
        network.
    ledger : path or None
        The ledger of a checkpoint, where it does not lie beside it.

    Returns
    -------
    Verification
        Every fault names its file.

    Raises
    ------
    TableError
        There is nothing at ``run``.
    """
    path = Path(run)
    if path.is_dir():
        return _with_files(verify_ledger(path / LEDGER), path)
    if not path.is_file():
        raise TableError(
            f"Expected the folder, ledger or checkpoint of a run, found nothing at "
            f"{path}; check the path."
        )
    with path.open("rb") as file:
        is_ledger = file.read(len(MAGIC)) == MAGIC
    if is_ledger or path.suffix in (".ledger", ".jsonl"):
        return _with_files(verify_ledger(path), path.parent)
    beside = RunFiles(ledger=ledger, checkpoint=path).ledger_path
    assert beside is not None
    return _with_checkpoint(verify_ledger(beside), path)


def _with_files(found: Verification, folder: Path) -> Verification:
    """Add the faults of the files that the closing line, or the folder, names."""
    view = found.view
    if view is None:
        return found
    in_folder = Path(found.ledger).name == LEDGER
    if view.closing is None:
        if not in_folder or not (folder / MODEL).exists():
            return found
        fault = Fault(
            found.ledger,
            "it is not closed, yet there is a model: the closing line was cut, or the "
            "run was interrupted in its last instant; bring the ledger back, or finish "
            f"with --resume if {CHECKPOINT} is there",
        )
        return replace(found, faults=(*found.faults, fault))
    faults = list(_digest_faults(found.ledger, view, folder))
    if in_folder and (folder / MODEL).exists():
        faults += _fit_faults(found.ledger, view, folder)
    return replace(found, faults=(*found.faults, *faults))


def _digest_faults(ledger: str, view: LedgerView, folder: Path) -> Iterator[Fault]:
    digests = {} if view.closing is None else view.closing.digests
    expected = [name for name in digests if name != PARAMETERS]
    if Path(ledger).name == LEDGER and (expected or (folder / MODEL).exists()):
        for name in DIGESTED:
            if name not in digests:
                yield Fault(ledger, f"its closing line has no digest of {name}")
    for name in expected:
        path = folder / name
        if name not in DIGESTED and f"{name}.ledger" != Path(ledger).name:
            yield Fault(ledger, f"its closing line names an unknown file, {name!r}")
        elif not path.is_file():
            yield Fault(str(path), "the closing line names it, but it is not there")
        elif digest(path) != digests[name]:
            yield Fault(
                str(path),
                "it was changed, or is of another run: its SHA-256 is not the one in "
                "the closing line; bring back the file of this run",
            )


def _fit_faults(ledger: str, view: LedgerView, folder: Path) -> Iterator[Fault]:
    """Compare what model, schema and report say with the ledger and each other."""
    path = folder / MODEL
    try:
        model = load_model(path)
    except TableError as error:
        yield Fault(str(path), str(error))
        return
    fault = ledger_fault(view, model.privacy)
    if fault is not None:
        yield Fault(ledger, fault)
    yield from _claim_faults(path, view, model.privacy)
    told = {} if view.closing is None else view.closing.digests
    if told.get(PARAMETERS, "") not in _digests_of(model):
        yield Fault(
            str(path),
            "its weights are not the parameters that the ledger was closed with",
        )
    settings = view.header.get("run_settings")
    named = settings.get("schema") if isinstance(settings, Mapping) else None
    if named != model.schema.digest():
        yield Fault(str(path), "its schema is not the one in the header of the ledger")
    yield from _schema_faults(folder / SCHEMA, model)
    yield from _report_faults(folder / REPORT_JSON, model)


def _schema_faults(path: Path, model: Model) -> Iterator[Fault]:
    if not path.is_file():
        return  # already named
    try:
        same = load_schema(path, require_reviewed=False).digest()
    except ArmijoError as error:
        yield Fault(str(path), str(error))
        return
    if same != model.schema.digest():
        yield Fault(str(path), "it is not the schema of the model")


def _report_faults(path: Path, model: Model) -> Iterator[Fault]:
    if not path.is_file():
        return  # already named
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        privacy, schema = report["privacy"], report["schema_digest"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        yield Fault(str(path), f"it is not a report ({error!r:.100})")
        return
    if privacy != dict(model.privacy):
        yield Fault(str(path), "its privacy statement is not that of the model")
    if schema != model.schema.digest():
        yield Fault(str(path), "its schema is not that of the model")


def _claim_faults(
    path: Path, view: LedgerView, privacy: Mapping[str, Any]
) -> Iterator[Fault]:
    for name in _CLAIMS:
        if privacy.get(name) != view.header.get(name):
            yield Fault(
                str(path),
                f"it says {name} {privacy.get(name)!r}, the header of the ledger says "
                f"{view.header.get(name)!r}",
            )
    assumed, named = privacy.get("assumptions"), view.header.get("assumptions")
    if not isinstance(assumed, list) or not isinstance(named, list):
        yield Fault(str(path), "it does not name the assumptions of its guarantee")
    elif any(one not in assumed for one in named):
        yield Fault(str(path), "it leaves out assumptions that the ledger names")


def ledger_fault(view: LedgerView, privacy: Mapping[str, object]) -> str | None:
    """Say how a ledger differs from the one that a model's statement names."""
    run, head = privacy.get("ledger_run"), privacy.get("ledger_head")
    found, told = len(view.charges), privacy.get("n_charges")
    if run != view.header.get("run"):
        return (
            f"expected the ledger of run {run}, found that of run "
            f"{view.header.get('run')}; bring back the ledger of this model"
        )
    if found != told:
        how = "it was extended after the run"
        if isinstance(told, int) and found < told:
            how = "it was cut"
        return (
            f"expected {told} charges, as the model says, found {found}: {how}; bring "
            "back the ledger of this model"
        )
    if head != view.head:
        return (
            f"expected {head} as the checksum of the last charge, found {view.head}; "
            "lines were changed, bring back the ledger of this model"
        )
    return None


def _digests_of(model: Model) -> tuple[str, ...]:
    """Return the digests of the parameters that have these weights."""
    if isinstance(model, TableModel):
        return tuple(released(model.additive.state.w).values())
    with_intercept = np.column_stack([model.coef, model.intercept])
    held = [with_intercept] + [model.coef] * (not model.intercept.any())
    return tuple(sha256(one.tobytes()).hexdigest() for one in held)


def _with_checkpoint(found: Verification, path: Path) -> Verification:
    """Add the faults of a checkpoint that does not belong to the ledger."""
    view = found.view
    try:
        left = read_released(path)
    except ArmijoError as error:
        return replace(found, faults=(*found.faults, Fault(str(path), str(error))))
    if view is None:
        return found
    faults = []
    if left.ledger != view.header.get("run"):
        faults.append(
            f"it belongs to the ledger {left.ledger}, found was "
            f"{view.header.get('run')}"
        )
    elif left.charges != len(view.charges) and view.closing is not None:
        faults.append(
            f"it was written after {left.charges} charges, the ledger was closed with "
            f"{len(view.charges)}"
        )
    elif view.closing is not None and view.closing.digests != released(left.w):
        faults.append("its parameters are not those that the ledger was closed with")
    more = (Fault(str(path), what) for what in faults)
    return replace(found, faults=(*found.faults, *more))


def summarize_run(folder: str | os.PathLike[str]) -> dict[str, object]:
    """Return guarantee, charges and model of a run, as JSON values.

    The run is verified as :func:`verify_run` does it; an unfinished
    one has no model yet.
    """
    path = Path(folder)
    if not path.is_dir():
        raise TableError(
            f"Expected a folder that fit left, got {path}; check the path."
        )
    view = read_ledger(path / LEDGER)
    verification = verify_run(path)
    about: dict[str, object] = {}
    state = "ended without a model"  # a run that diverged leaves its ledger only
    if (path / MODEL).is_file():
        state, model = "finished", load_model(path / MODEL)
        about = {
            "statement": model.privacy.get("statement"),
            "model": model.kind,
            "target": model.schema.target,
            "classes": list(model.classes),
            "features": len(model.feature_names),
        }
    elif (path / CHECKPOINT).is_file():
        state, about = "unfinished", {"remedy": "run fit with --resume to finish it"}
    if (path / REPORT_JSON).is_file():
        about["batches"] = _batches(path / REPORT_JSON)
    return {
        "state": state,
        **{name: view.header.get(name) for name in _CLAIMS[:6]},
        "charges": len(view.charges),
        "torn_lines": int(view.torn),
        "created": view.header.get("created"),
        "created_by": view.header.get("created_by"),
        "verified": verification.verified,
        "verdict": verification.verdict,
        "faults": [str(fault) for fault in verification.faults],
        **about,
    }


def _batches(path: Path) -> int:
    """Return the number of batches that a report tells of."""
    try:
        return len(json.loads(path.read_text(encoding="utf-8"))["history"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a report in JSON, got {shown(error)}; remove it: model "
            "and ledger do without."
        ) from None
