# SPDX-License-Identifier: Apache-2.0
"""What a folder that ``fit`` left says, with its ledger checked again."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from armijo.errors import TableError
from armijo.jobs.fit import CHECKPOINT, LEDGER, MODEL
from armijo.jobs.report import REPORT_JSON
from armijo.privacy.ledger import LedgerView, read_ledger
from armijo.tables import load_model
from armijo.tables.cells import shown


def describe_run(folder: str | os.PathLike[str]) -> dict[str, object]:
    """Return guarantee, charges and model of a run, as JSON values.

    The ledger is read and verified line by line, and compared with what the model file
    says of its end: whole lines that are missing there cannot be seen in the ledger
    alone.  An unfinished run has no model yet.
    """
    path = Path(folder)
    if not path.is_dir():
        raise TableError(
            f"Expected a folder that fit left, got {path}; check the path."
        )
    view = read_ledger(path / LEDGER)
    header = view.header
    described: dict[str, object] = {
        "state": _state(path),
        "epsilon": header.get("epsilon"),
        "delta": header.get("delta"),
        "relation": header.get("relation"),
        "accountant": header.get("accountant"),
        "guarantee": header.get("guarantee"),
        "broken_premises": header.get("broken_premises"),
        "charges": len(view.charges),
        "torn_lines": view.torn,
        "ledger_verified": True,
        "ledger_fault": None,
    }
    if (path / MODEL).is_file():
        model = load_model(path / MODEL)
        fault = ledger_fault(view, model.privacy)
        described["ledger_verified"], described["ledger_fault"] = fault is None, fault
        described["statement"] = model.privacy.get("statement")
        described["model"] = model.kind
        described["target"] = model.schema.target
        described["classes"] = list(model.classes)
        described["features"] = len(model.feature_names)
    elif (path / CHECKPOINT).is_file():
        described["remedy"] = "run fit with --resume to finish it"
    if (path / REPORT_JSON).is_file():
        described["batches"] = _batches(path / REPORT_JSON)
    return described


def ledger_fault(view: LedgerView, privacy: Mapping[str, object]) -> str | None:
    """Say how a ledger differs from the one that a model's statement names.

    The statement of an older release has no more than the number of charges.
    """
    run, head = privacy.get("ledger_run"), privacy.get("ledger_head")
    found, told = len(view.charges), privacy.get("n_charges")
    if run is not None and run != view.header.get("run"):
        return (
            f"expected the ledger of run {run}, found that of run "
            f"{view.header.get('run')}; bring back the ledger of this model"
        )
    if type(told) is int and found != told:
        how = "it was cut" if found < told else "it was extended after the run"
        return (
            f"expected {told} charges, as the model says, found {found}: {how}; bring "
            "back the ledger of this model"
        )
    if head is not None and head != view.head:
        return (
            f"expected {head} as the checksum of the last line, found {view.head}; "
            "lines were changed, bring back the ledger of this model"
        )
    return None


def _state(path: Path) -> str:
    """Say how far the run in a folder got; one that diverged leaves its ledger only."""
    if (path / MODEL).is_file():
        return "finished"
    if (path / CHECKPOINT).is_file():
        return "unfinished"
    return "ended without a model"


def _batches(path: Path) -> int:
    """Return the number of batches that a report tells of."""
    try:
        return len(json.loads(path.read_text(encoding="utf-8"))["history"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise TableError(
            f"{path}: Expected a report in JSON, got {shown(error)}; remove it: model "
            "and ledger do without."
        ) from None
