# SPDX-License-Identifier: Apache-2.0
"""Results as rows of a CSV file, written as they come: a kill loses only what runs.

Beside it ``builds.json`` says by which versions each row was made.
"""

import csv
import io
import json
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
from armijo.experiments.spec import KEY, Cell

CONVEX = (
    *("accuracy", "objective", "gradients", "objectives", "batches", "updates"),
    *("seconds", "build"),
)
NETWORKS = (
    *("iteration", "accuracy", "objective", "spent", "printed", "step_size"),
    *("seconds", "build"),
)
COLUMNS = {"convex": (*KEY, *CONVEX), "networks": (*KEY, *NETWORKS)}
BUILDS = "builds.json"


class Results:
    """The rows of one experiment in a folder.

    Parameters
    ----------
    folder : path
        Where the files are; made if missing.
    name : str
        The experiment.
    kind : {"convex", "networks"}
        Which columns the rows have.
    """

    def __init__(self, folder: Path, name: str, kind: str) -> None:
        self.path = Path(folder) / f"{name}.csv"
        self._columns = COLUMNS[kind]

    def table(self) -> pd.DataFrame:
        """Return the whole rows; a last line cut short by a kill is left out."""
        if not self.path.exists():
            return pd.DataFrame(columns=list(self._columns))
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        names = {name: str for name in ("line", "setting", "dataset", "model", "build")}
        found = pd.read_csv(io.StringIO(whole), dtype=names)
        if tuple(found.columns) != self._columns:
            raise ArmijoError(
                f"Expected the columns {', '.join(self._columns)} in {self.path}, got "
                f"{', '.join(map(str, found.columns))}; name another folder."
            )
        return found

    def done(self) -> set[tuple[Any, ...]]:
        """Return the keys of the cells that have their rows."""
        return set(self.table()[list(KEY)].itertuples(index=False, name=None))

    def append(self, cell: Cell, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add the rows of a cell in one write."""
        key = asdict(cell)
        text = io.StringIO()
        writer = csv.DictWriter(text, self._columns, lineterminator="\n")
        if not self.path.exists():
            writer.writeheader()
        writer.writerows({**key, **row, "build": build()} for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _drop_torn_line(self.path)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            file.write(text.getvalue())

    def note_build(self) -> None:
        """Write down the versions of this build, once."""
        path = self.path.with_name(BUILDS)
        known = json.loads(path.read_text()) if path.exists() else {}
        if build() not in known:
            path.parent.mkdir(parents=True, exist_ok=True)
            known[build()] = versions()
            path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _drop_torn_line(path: Path) -> None:
    """Remove a last line without its end, which a kill may have left."""
    if not path.exists():
        return
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


@cache
def versions() -> dict[str, str]:
    """Return what made a result: versions, and a digest of the package's source."""
    digest = blake2b(digest_size=6)
    root = Path(str(files("armijo")))
    for path in sorted(root.rglob("*.py")):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
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
