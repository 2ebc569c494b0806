# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of ``how-it-works.md``: ``python docs/pictures.py``."""

from pathlib import Path

import matplotlib
import numpy as np
import torch

from armijo import BLSGD, Budget, solve
from armijo.cli._census import generated_census
from armijo.data.query import Rows
from armijo.objectives import LinearObjective

matplotlib.use("svg")
import matplotlib.pyplot as plt

BLUE, ORANGE, GRAY = "#0072B2", "#D55E00", "#767676"
FIGURES = Path(__file__).parent / "figures"
ROWS, SLOPE, SHRINK, FIRST = 4_000, 0.5, 0.8, 3.0


def search_picture(path: Path) -> None:
    """Draw exact gains along a gradient, noisy ones, and the first that passes."""
    rng = np.random.default_rng(1)
    data = generated_census(ROWS)
    y = 2.0 * data.y - 1.0
    objective = LinearObjective(loss="logistic", n_features=data.X.shape[1])
    w = torch.zeros(objective.size, dtype=torch.float64)
    rows = Rows(data.X, y, cache={}, seed=0)
    slopes = objective.score_gradients(torch.zeros(ROWS), torch.from_numpy(y))
    g = np.append(data.X.T @ slopes.numpy()[:, 0], slopes.sum()) / ROWS
    g = torch.from_numpy(g + rng.normal(0, 0.02, len(g)))
    sizes = FIRST * SHRINK ** np.arange(16)
    gains = np.array([_gain(objective, rows, w, g, size) for size in sizes])
    needed = SLOPE * sizes * float(g @ g)
    noisy = gains - needed + rng.normal(0, 0.03, len(sizes))
    passed = int(np.argmax(noisy > 0))
    fig, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    ax.axhline(0, color=GRAY, lw=1)
    ax.plot(sizes, gains - needed, color=BLUE, label="exact: seen by nobody")
    ax.plot(sizes, noisy, ".", color=GRAY, label="never asked for")
    ax.plot(
        sizes[: passed + 1],
        noisy[: passed + 1],
        "o",
        color=ORANGE,
        label="noisy comparison",
    )
    ax.annotate(
        "first that passes",
        (sizes[passed], noisy[passed]),
        (sizes[passed] * 1.2, noisy[passed] - 0.2),
        arrowprops={"arrowstyle": "->", "color": ORANGE},
    )
    ax.set_xscale("log")
    ax.set_xticks([3, 2, 1, 0.5, 0.2], ["3", "2", "1", "0.5", "0.2"], minor=False)
    ax.set_xticks([], minor=True)
    ax.invert_xaxis()
    ax.set_xlabel("step size, candidates from left to right")
    ax.set_ylabel("gain less what Armijo asks for")
    _save(fig, ax, path)


def _gain(objective, rows, w, g, size) -> float:
    """Return the mean loss drop of a step."""
    query = objective.loss_drop_sum(w, g, float(size), form="difference", clip=1e9)
    return float(query.contributions(rows).sum()) / ROWS


def run_picture(path: Path) -> None:
    """Draw the step sizes and the spent share of a DP-BLSGD run."""
    data = generated_census(ROWS * 5)
    found = solve(
        data.X,
        2.0 * data.y - 1.0,
        method=BLSGD(expected_steps=60),
        budget=Budget(epsilon=1.0, delta=1e-6),
        n_rows=len(data.y),
        seed=3,
    )
    fig, (top, bottom) = plt.subplots(
        2, 1, figsize=(7, 4.4), sharex=True, layout="constrained"
    )
    batch = [record.batch for record in found.records]
    step = np.array([record.step_size for record in found.records])
    top.plot(batch, np.where(step > 0, step, np.nan), "o", ms=3, color=BLUE)
    failed = [b for b, s in zip(batch, step, strict=True) if s == 0]
    top.plot(failed, np.full(len(failed), step[step > 0].min()), "x", color=ORANGE)
    top.set_yscale("log")
    top.set_ylabel("step size\n(x: none found)")
    bottom.plot(batch, [record.epsilon for record in found.records], color=BLUE)
    bottom.axhline(1.0, color=ORANGE, ls="--")
    bottom.set_ylabel("spent epsilon")
    bottom.set_xlabel("batch")
    top.spines[["top", "right"]].set_visible(False)
    _save(fig, bottom, path, legend=False)


def _save(fig, ax, path: Path, *, legend: bool = True) -> None:
    """Write the same bytes each time."""
    ax.spines[["top", "right"]].set_visible(False)
    if legend:
        ax.legend(frameon=False, fontsize=8)
    fig.savefig(path, metadata={"Date": None})
    plt.close(fig)


if __name__ == "__main__":
    plt.rcParams["svg.hashsalt"] = "armijo"
    FIGURES.mkdir(exist_ok=True)
    search_picture(FIGURES / "search.svg")
    run_picture(FIGURES / "run.svg")
