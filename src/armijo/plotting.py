# SPDX-License-Identifier: Apache-2.0
"""Pictures of a run from its released records."""

from typing import Any

import numpy as np
import pandas as pd

from armijo.accounting.budget import Guarantee

BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#767676"


def plot_history(history: pd.DataFrame, guarantee: Guarantee, axes: Any = None) -> Any:
    """Draw step sizes, per-step budgets and spent epsilon; return the three axes."""
    import matplotlib.pyplot as plt

    if axes is None:
        _, axes = plt.subplots(
            3, 1, figsize=(7.0, 7.5), sharex=True, layout="constrained"
        )
    draw_steps(axes[0], history)
    draw_budgets(axes[1], history)
    draw_spent(axes[2], history, guarantee)
    axes[2].set_xlabel("batch")
    return axes


def draw_steps(ax: Any, history: pd.DataFrame) -> None:
    """Draw the chosen step size of each update, and where a search found none."""
    history = history[history["step_size"].notna()]
    found = history["step_size"] > 0
    if found.any():
        ax.plot(
            history["batch"][found],
            history["step_size"][found],
            ".",
            color=BLUE,
            markersize=4,
            label="chosen step size",
        )
        ax.set_yscale("log")
    if history["initial_step"].notna().any():
        ax.plot(
            history["batch"],
            history["initial_step"],
            color=GRAY,
            lw=1,
            label="first candidate",
        )
    missed = history["batch"][~found]
    if len(missed):
        floor = history["step_size"][found].min() if found.any() else 1.0
        ax.plot(
            missed,
            np.full(len(missed), floor),
            "x",
            color=ORANGE,
            markersize=4,
            label="none found",
        )
    ax.set_ylabel("step size")
    _legend(ax)
    _tidy(ax)


def draw_budgets(ax: Any, history: pd.DataFrame) -> None:
    """Draw the un-amplified budgets of gradient and search."""
    gradient = np.sqrt(2 * history["gradient_rho"].astype(float))
    for name, values, color, style in (
        ("gradient: sqrt(2 rho)", gradient, BLUE, "-"),
        ("search: epsilon", history["search_epsilon"], ORANGE, "--"),
    ):
        if values.notna().any():
            ax.plot(history["batch"], values, color=color, linestyle=style, label=name)
    ax.set_ylabel("budget per batch")
    ax.set_ylim(bottom=0)
    _legend(ax)
    _tidy(ax)


def draw_spent(ax: Any, history: pd.DataFrame, guarantee: Guarantee) -> None:
    """Draw spent epsilon against the preset promise."""
    epsilon = guarantee.budget.epsilon
    ax.plot(history["batch"], history["epsilon"], color=BLUE, label="spent")
    label = "promised" if guarantee.holds else "label only: no guarantee"
    ax.axhline(epsilon, color=ORANGE, linestyle="--", label=f"{label}: {epsilon:g}")
    ax.set_ylabel("epsilon")
    ax.set_ylim(bottom=0)
    ax.legend(loc="lower right", frameon=False, fontsize=8)
    _tidy(ax)


def draw_angles(ax: Any, history: pd.DataFrame) -> None:
    """Draw the angle of each direction to the one it was compared with."""
    ax.plot(history["batch"], history["angle"], ".", color=BLUE, markersize=4)
    ax.axhline(90, color=GRAY, lw=1)
    ax.set_ylabel("angle (degrees)")
    ax.set_ylim(0, 180)
    ax.set_yticks([0, 45, 90, 135, 180])
    _tidy(ax)


def _legend(ax: Any) -> None:
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", frameon=False, fontsize=8)


def _tidy(ax: Any) -> None:
    """Leave out what carries no information."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
