# SPDX-License-Identifier: Apache-2.0
"""What a folder that ``fit`` left says, verified again."""

import json
import os
from pathlib import Path

from armijo.accounting.ledger import read_ledger
from armijo.errors import TableError
from armijo.jobs.fit import CHECKPOINT, LEDGER, MODEL
from armijo.jobs.report import REPORT_JSON
from armijo.jobs.verify import verify_run
from armijo.tables import load_model
from armijo.tables.cells import shown


def summarize_run(folder: str | os.PathLike[str]) -> dict[str, object]:
    """Return guarantee, charges and model of a run, as JSON values.

    The run is verified as :func:`armijo.jobs.verify.verify_run` does it; an unfinished
    one has no model yet.
    """
    path = Path(folder)
    if not path.is_dir():
        raise TableError(
            f"Expected a folder that fit left, got {path}; check the path."
        )
    view = read_ledger(path / LEDGER)
    found = verify_run(path)
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
        "created": header.get("created"),
        "created_by": header.get("created_by"),
        "verified": found.verified,
        "verdict": found.verdict,
        "faults": [str(fault) for fault in found.faults],
    }
    if (path / MODEL).is_file():
        model = load_model(path / MODEL)
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
