# SPDX-License-Identifier: Apache-2.0
"""Claimed beside audited: files of a whole audit."""

import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from armijo.audit.suite import Audit
from armijo.estimators.plotting import BLUE, GRAY, ORANGE

AUDIT_JSON, AUDIT_PNG, AUDIT_SVG = "audit.json", "audit.png", "audit.svg"


def write_audit(folder: Path, audit: Audit) -> None:
    """Write ``audit.json``, ``audit.png`` and ``audit.svg``, making the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(audit.to_dict(), allow_nan=False, indent=1)
    (folder / AUDIT_JSON).write_text(text + "\n", encoding="utf-8")
    figure = draw_audit(audit)
    figure.savefig(folder / AUDIT_PNG, dpi=150)
    figure.savefig(folder / AUDIT_SVG, metadata={"Date": None})


def draw_audit(audit: Audit) -> Figure:
    """Draw a bar to each audited epsilon, and a mark at its claim."""
    outcomes = audit.outcomes[::-1]  # the first on top
    figure = Figure(figsize=(7.0, 1.4 + 0.3 * len(outcomes)), layout="constrained")
    ax = figure.subplots()
    for bad, color, label in (
        (False, BLUE, "audited: epsilon is at least this"),
        (True, ORANGE, "audited: the claim is refuted"),
    ):
        at = [i for i, one in enumerate(outcomes) if one.exceeds == bad]
        if at:
            lengths = [outcomes[i].epsilon for i in at]
            bars = ax.barh(at, lengths, height=0.55, color=color, label=label)
            ax.bar_label(bars, fmt="%.2f", padding=3, fontsize=8)
    claims = [one.claim.epsilon for one in outcomes]
    ax.plot(claims, range(len(outcomes)), "k|", ms=13, mew=2, label="claimed: at most")
    ax.set_yticks(range(len(outcomes)), [_label(one) for one in outcomes])
    _finish(ax, audit)
    return figure


def _label(outcome: Any) -> str:
    """Return the name of a game with its delta."""
    return f"{outcome.name}  (delta {outcome.claim.delta:g})"


def _finish(ax: Any, audit: Audit) -> None:
    """Name the axes and leave out what carries no information."""
    ax.set_xlabel(
        f"epsilon (all bounds together hold with confidence {audit.confidence:g})"
    )
    ax.set_xlim(left=0)
    ax.set_ylim(-0.7, len(audit.outcomes) - 0.3)
    ax.tick_params(axis="y", length=0, labelsize=8, labelcolor=GRAY)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(axis="x", alpha=0.25)
    ax.figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
