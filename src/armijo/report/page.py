# SPDX-License-Identifier: Apache-2.0
"""The report of a run: one page with pictures, and the same as JSON.

It shows released values only: step records, the model, public settings and the ledger.
"""

import base64
import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, select_autoescape

from armijo._files import replace_file
from armijo.estimators.additive import PrivateTableEstimator
from armijo.estimators.base import PrivateEstimator
from armijo.estimators.model_file import LinearModel, Model
from armijo.plotting import (
    draw_angles,
    draw_budgets,
    draw_spent,
    draw_steps,
    shape_axes,
)

MODEL, LEDGER, CHECKPOINT = "model.json", "ledger.jsonl", "checkpoint.safetensors"
SCHEMA, REPORT_HTML, REPORT_JSON = "schema.toml", "report.html", "report.json"
DIGESTED = (MODEL, SCHEMA, REPORT_JSON, REPORT_HTML)
"""Files of a finished run that the closing line of its ledger has digests of."""


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, as 64 hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


ASSUMPTIONS = (
    "Bounds, categories, classes and the number of rows in the schema are public "
    "knowledge and were not read from the rows.",
    "Only what this folder holds is released; the table itself, its intermediate "
    "copies and the running time of the computation stay inside.",
    "The budget covers this run. Other runs on the same rows spend budgets of their "
    "own, which add up.",
)


OF_ROWS = "Each person contributes to at most one row of the table."
OF_PERSONS = (
    "The person column names the same person in all of their rows, and nobody else in "
    "them; the number of persons is public."
)


def write_report(
    folder: Path,
    estimator: PrivateEstimator,
    model: Model,
    asked: Mapping[str, Any],
) -> None:
    """Write ``report.json`` and ``report.html``; settings are named as asked."""
    document = report_document(estimator, model, asked)
    text = json.dumps(document, allow_nan=False, indent=1) + "\n"
    replace_file(folder / REPORT_JSON, text.encode())
    page = render_html(document, estimator, model)
    replace_file(folder / REPORT_HTML, page.encode())


def report_document(
    estimator: PrivateEstimator, model: Model, asked: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the report as JSON values."""
    hidden = {"callback", "classes", "ledger", "schema"}
    settings = {**estimator.get_params(deep=False), **asked}
    history = estimator.history_.astype(object)
    privacy = estimator.privacy_
    unit = OF_PERSONS if privacy.guarantee.unit == "person" else OF_ROWS
    releases, pairs = [], []
    if isinstance(estimator, PrivateTableEstimator):
        releases = estimator.releases_.to_dict(orient="records")
        pairs = [list(pair) for pair in estimator.model_.pairs()]
    return {
        "format": "armijo-report",
        "version": 2,
        "created_by": model.created_by,
        "privacy": privacy.to_dict(),
        "assumptions": [*ASSUMPTIONS, unit, *privacy.guarantee.assumptions],
        "warnings": list(getattr(estimator, "doubts_", ())),
        "model": {
            "kind": model.kind,
            "target": model.schema.target,
            "classes": list(model.classes),
            "n_features": len(model.feature_names),
        },
        "releases": releases,
        "pairs": pairs,
        "schema_digest": model.schema.digest(),
        "settings": {
            name: value for name, value in settings.items() if name not in hidden
        },
        "history": history.where(history.notna(), None).to_dict(orient="records"),
    }


def render_html(
    document: dict[str, Any], estimator: PrivateEstimator, model: Model
) -> str:
    """Fill the page; pictures and styles are inside, nothing is fetched."""
    environment = Environment(
        loader=PackageLoader("armijo", "report/templates"),
        autoescape=select_autoescape(),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    history = estimator.history_
    guarantee = estimator.privacy_.guarantee
    pictures = [
        (caption, _picture(draw, history, *more))
        for caption, column, draw, more in (
            ("Step sizes", "step_size", draw_steps, ()),
            ("Budget spent", "epsilon", draw_spent, (guarantee,)),
            ("Budget of each batch", "gradient_rho", draw_budgets, ()),
            ("Angles between noisy directions", "angle", draw_angles, ()),
        )
        if len(history) > 1 and history[column].notna().any()
    ]
    return environment.get_template("report.html").render(
        document=document,
        holds=guarantee.holds,
        sentence=plain_sentence(document["privacy"]),
        pictures=pictures,
        shapes=_shapes(estimator),
        hashed=[c.name for c in model.schema.columns if getattr(c, "hashed", False)],
        weights=largest_weights(model),
        updates=int((history["step_size"].fillna(0) > 0).sum()),
        batches=len(history),
    )


def plain_sentence(privacy: dict[str, Any]) -> str:
    """Say the guarantee so that everybody can read it."""
    if not privacy["guarantee"]:
        return str(privacy["statement"])
    change = {
        "add-remove": "adding or removing",
        "zero-out": "blanking",
        "replace-one": "exchanging",
    }[str(privacy["relation"])]
    unit = "any one row"
    if privacy.get("unit") == "person":
        unit = "all rows of any one person"
    with np.errstate(over="ignore"):  # beyond an epsilon of 709 it is called infinite
        factor = float(np.exp(privacy["epsilon"]))
    return (
        f"Whatever is concluded from this model, {change} {unit} of the table would "
        f"have changed its probability by at most a factor of {factor:.3g} (epsilon "
        f"{privacy['epsilon']:g}), except with probability {privacy['delta']:g} "
        "(delta)."
    )


def largest_weights(model: Model, count: int = 12) -> list[tuple[str, str]]:
    """Return the features with the largest weights, which are released values."""
    if not isinstance(model, LinearModel):
        return []
    size = np.abs(model.coef).max(axis=0)
    order = np.argsort(-size)[:count]
    return [
        (
            model.feature_names[i],
            ", ".join(f"{value:+.3f}" for value in model.coef[:, i]),
        )
        for i in order
    ]


def _shapes(estimator: PrivateEstimator) -> str | None:
    if not isinstance(estimator, PrivateTableEstimator):
        return None
    from matplotlib.figure import Figure

    axes = shape_axes(len(estimator.model_.shapes()), Figure)
    estimator.plot_shapes(axes=axes)
    return _address(axes[0].figure)


def _picture(draw: Any, *arguments: Any) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 2.6), layout="constrained")
    axes = figure.add_subplot()
    draw(axes, *arguments)
    axes.set_xlabel("batch")
    return _address(figure)


def _address(figure: Any) -> str:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    encoded = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f"data:image/png;base64,{encoded}"
