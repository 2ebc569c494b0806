# SPDX-License-Identifier: Apache-2.0
"""A small table in files, its public schema, and runs on it that tests share.

What the rows say about their own number differs from what the schema says, so that a
count that leaks can be told from a public one.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from armijo.accounting.ledger import read_ledger
from armijo.cli.fit import FitOutcome, fit_table
from armijo.tables import Categorical, Label, Numeric, Schema
from tests.estimators.flat import split

FOUND_ROWS, PUBLIC_ROWS = 317, 301
CLASSES = ("no", "yes")
SEED = 3
FILES = {"model.json", "report.html", "report.json", "schema.toml", "ledger.jsonl"}
SETTINGS = {
    "epsilon": 1.0,
    "delta": 1e-5,
    "method": "blsgd",
    "options": {"expected_steps": 10, "search_form": "difference"},
}


def small_frame(n_rows: int = FOUND_ROWS) -> pd.DataFrame:
    """Return rows whose ages and heights lie partly outside the public bounds."""
    draw = np.random.default_rng(20)
    age = draw.integers(18, 140, n_rows)
    color = draw.choice(["red", "green", "blue"], n_rows)
    height = draw.normal(170, 12, n_rows).round(1)
    score = age / 60 + (color == "red") + 0.3 * draw.normal(size=n_rows)
    income = np.where(score > 1.9, CLASSES[1], CLASSES[0])
    return pd.DataFrame(
        {"age": age, "color": color, "height": height, "income": income}
    )


def private_counts() -> set[int]:
    """Return numbers that only the rows know: all, of each class, outside bounds."""
    frame = small_frame()
    outside = int((frame["age"] > 100).sum())
    return {len(frame), outside, *frame["income"].value_counts().tolist()}


def numbers_in(text: str) -> set[int]:
    """Return the whole numbers that stand alone in a text; pictures are left out."""
    text = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=]+", "", text)
    return {int(word) for word in re.findall(r"(?<![\w.+-])\d+(?!\w|\.\d)", text)}


def released(path: Path) -> str:
    """Return a file of a run without the random name of the run's ledger."""
    return re.sub(r'"ledger_(run|head)": "[0-9a-f-]+"', "", path.read_text())


def small_schema(**changed: Any) -> Schema:
    """Return the public description of the rows."""
    given: dict[str, Any] = {
        "columns": (
            Numeric("age", 0, 100),
            Categorical("color", ("red", "green", "blue")),
            Numeric("height", 140, 200),
            Label("income", CLASSES),
        ),
        "target": "income",
        "n_rows": PUBLIC_ROWS,
        "reviewed": True,
    }
    return Schema(**{**given, **changed})


@dataclass(frozen=True)
class Small:
    """Where the table and its schema are; ``fit`` has usual settings."""

    csv: Path
    parquet: Path
    schema: Path

    def fit(self, out: Path, **given: Any) -> FitOutcome:
        """Fit the CSV file; ``parameters`` change some of the usual ones."""
        asked = split(given.get("parameters", {}))
        options = {**SETTINGS["options"], **asked["options"]}
        given["parameters"] = {**SETTINGS, **asked, "options": options}
        return fit_table(
            given.pop("table", self.csv),
            schema=given.pop("schema", self.schema),
            out=out,
            **{"kind": "logistic", **given},
        )


def write_small(folder: Path) -> Small:
    """Write the table, as CSV and as Parquet, and its schema."""
    found = Small(folder / "t.csv", folder / "t.parquet", folder / "schema.toml")
    frame = small_frame()
    frame.to_csv(found.csv, index=False)
    frame.to_parquet(found.parquet, index=False)
    found.schema.write_text(small_schema().to_toml(), encoding="utf-8")
    return found


def stop_after(count):
    """Return a callback that asks to stop after some batches of this call."""
    seen = []

    def callback(record):
        seen.append(record)
        return len(seen) >= count

    return callback


def content(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its bytes."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def own_files(folder: Path) -> set[str]:
    """Return the names in a folder; the ledger's lock is no product."""
    return {path.name for path in folder.iterdir()} - {"ledger.jsonl.lock"}


def charges(folder: Path):
    return read_ledger(folder / "ledger.jsonl").charges


def within_limits(view) -> bool:
    """Say whether the sums of a ledger keep the limits of its header."""
    pairs = zip(view.spent, view.header["limits"], strict=True)
    return all(spent <= limit for spent, limit in pairs)


def same_run(one, other) -> None:
    """Check that two runs released the same bits and paid the same."""
    assert one.estimator.coef_.tobytes() == other.estimator.coef_.tobytes()
    assert one.estimator.intercept_.tobytes() == other.estimator.intercept_.tobytes()
    pd.testing.assert_frame_equal(
        one.estimator.history_, other.estimator.history_, check_exact=True
    )
    assert charges(one.folder) == charges(other.folder)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """The files; tests leave them as they are."""
    return write_small(tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def finished(small: Small, tmp_path_factory: pytest.TempPathFactory) -> FitOutcome:
    """A whole run with a guarantee; tests only read it."""
    return small.fit(tmp_path_factory.mktemp("finished") / "deep" / "run")


@pytest.fixture(scope="session")
def seeded(small: Small, tmp_path_factory: pytest.TempPathFactory) -> FitOutcome:
    """A whole run that can be repeated; tests only read it."""
    out = tmp_path_factory.mktemp("seeded") / "run"
    return small.fit(out, parameters={"random_state": SEED})
