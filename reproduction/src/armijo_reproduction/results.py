# SPDX-License-Identifier: Apache-2.0
"""Results as rows of a CSV file, written as they come: a kill loses only what runs.

Beside it ``builds.json`` says by which versions each row was made.
"""

import csv
import io
import json
import os
import platform
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from hashlib import blake2b
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd

from armijo.errors import ArmijoError
from armijo_reproduction.spec import (
    KEY,
    RELEASED_NAMES,
    Experiment,
    RunKey,
    renamed,
)

CONVEX = (
    *("accuracy", "objective", "gradients", "objectives", "batches", "updates"),
    *("seconds", "build"),
)
NETWORKS = (
    *("iteration", "accuracy", "objective", "spent", "printed", "step_size"),
    *("seconds", "build"),
)
COLUMNS = {"convex": (*KEY, *CONVEX), "networks": (*KEY, *NETWORKS)}
TEXTS = ("line", "setting", "dataset", "model", "build")
BUILDS = "builds.json"


class Results:
    """The rows of one experiment in a folder.

    Parameters
    ----------
    folder : path
        Where the files are; made if missing.
    wanted : Experiment
        The experiment.
    fast : bool
        Whether it is the fast version, which has a file of its own.
    """

    def __init__(self, folder: Path, wanted: Experiment, *, fast: bool = False) -> None:
        self.path = Path(folder) / f"{wanted.name}{'-fast' if fast else ''}.csv"
        self._columns = COLUMNS[wanted.kind]
        self._steps = wanted.steps if wanted.kind == "networks" else None

    def table(self) -> pd.DataFrame:
        """Return the rows of whole runs: what a kill cut short is left out."""
        found = self._whole()
        return found[self._finished(found)].reset_index(drop=True)

    def _whole(self) -> pd.DataFrame:
        """Read every line that has its end."""
        whole = _whole_lines(self.path)
        if not whole:
            return pd.DataFrame(columns=list(self._columns))
        try:
            # As text first: Python's own reading of a number is exact.
            found = pd.read_csv(io.BytesIO(whole), dtype=str, skip_blank_lines=False)
            self._check(found, len(whole.splitlines()))
            return found.assign(
                setting=[renamed(text, RELEASED_NAMES) for text in found["setting"]],
                **{
                    name: found[name].map(kind).astype(kind)
                    for name, kind in _numbers(found).items()
                },
            )
        except (ValueError, OverflowError, ArmijoError) as error:
            raise ArmijoError(
                f"The results in {self.path} are damaged: {str(error).strip()}. "
                "Mend or remove what is wrong: runs without a line are made again."
            ) from error

    def _check(self, found: pd.DataFrame, lines: int) -> None:
        """Refuse other columns than ours, and lines that lack a value or a row."""
        if tuple(found.columns) != self._columns:
            raise ArmijoError(
                f"expected the columns {', '.join(self._columns)}, got "
                f"{', '.join(map(str, found.columns))}"
            )
        lacking = found[[*KEY, "accuracy", "seconds", "build"]].isna().any(axis=1)
        if lacking.any():
            raise ArmijoError(f"line {int(lacking.argmax()) + 2} lacks a value")
        if len(found) != lines - 1 or not isinstance(found.index, pd.RangeIndex):
            raise ArmijoError("a line holds a quote or a comma too many")

    def _finished(self, found: pd.DataFrame) -> "pd.Series[bool]":
        """Say of each row whether its run has all rows: a curve ends at the last."""
        if self._steps is None or found.empty:
            return pd.Series(True, index=found.index)
        last = found.groupby(list(KEY))["iteration"].transform("max")
        return last >= self._steps

    def done(self) -> set[tuple[Any, ...]]:
        """Return the keys of the runs that have their rows."""
        return set(self.table()[list(KEY)].itertuples(index=False, name=None))

    def append(self, run: RunKey, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of a run in one write."""
        key = asdict(run)
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if not self.path.exists():
            writer.writeheader()
        writer.writerows({**key, **row, "build": build()} for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(text.getvalue().encode())

    def drop_partial(self) -> None:
        """Remove what a kill cut short, so that appended lines begin a line."""
        if not self.path.exists():
            return
        header, *lines = _whole_lines(self.path).splitlines(keepends=True) or [b""]
        finished = self._finished(self._whole())
        kept = header + b"".join(
            line for line, whole in zip(lines, finished, strict=True) if whole
        )
        if not kept:
            self.path.unlink()
        elif kept != self.path.read_bytes():
            _replace(self.path, kept)

    def note_build(self) -> None:
        """Write down the versions of this build, once."""
        path = self.path.with_name(BUILDS)
        known = _known_builds(path) if path.exists() else {}
        if build() not in known:
            path.parent.mkdir(parents=True, exist_ok=True)
            known[build()] = versions()
            _replace(path, (json.dumps(known, indent=1) + "\n").encode())


def _numbers(found: pd.DataFrame) -> dict[str, type]:
    """Return the columns that hold numbers, with their type."""
    return {
        name: int if name in ("fold", "repeat") else float
        for name in found.columns
        if name not in TEXTS
    }


def _known_builds(path: Path) -> dict[str, Any]:
    """Read the builds that are written down."""
    try:
        return dict(json.loads(path.read_bytes()).items())
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArmijoError(
            f"The file {path} is damaged: {error}. Remove it: the versions of the "
            "builds before this one are then not known any more."
        ) from error


def _whole_lines(path: Path) -> bytes:
    """Return the content up to the last end of a line, empty without a file."""
    content = path.read_bytes() if path.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def _replace(path: Path, content: bytes) -> None:
    """Put a file in the place of another in one step."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


@cache
def versions() -> dict[str, str]:
    """Return what made a result: versions, and a digest of the source."""
    digest = blake2b(digest_size=6)
    for root in (Path(str(files(name))) for name in ("armijo", "armijo_reproduction")):
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            digest.update(name.encode() + path.read_bytes())
    names = ("armijo", "numpy", "scipy", "torch", "dp-accounting")
    return {
        **{name: version(name) for name in names},
        "python": platform.python_version(),
        "machine": platform.machine(),
        "source": digest.hexdigest(),
    }


@cache
def build() -> str:
    """Return a short name of the versions that are at work."""
    text = json.dumps(versions(), sort_keys=True)
    return blake2b(text.encode(), digest_size=4).hexdigest()


def at_the_end(table: pd.DataFrame) -> pd.DataFrame:
    """Return the last rows of curves; all rows where there are none.

    >>> curve = pd.DataFrame({"iteration": [50, 100], "accuracy": [0.5, 0.7]})
    >>> at_the_end(curve)["accuracy"].tolist()
    [0.7]
    """
    if "iteration" not in table:
        return table
    return table[table["iteration"] == table["iteration"].max()]
