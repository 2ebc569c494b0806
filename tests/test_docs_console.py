# SPDX-License-Identifier: Apache-2.0
"""Every ``armijo`` command of the documentation runs on a small table, page by page."""

import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from armijo.cli import app
from tests.test_docs import PAGES, ROOT

COMMAND = re.compile(r"^\$ armijo (.*?)(?:\s+#.*)?$", re.MULTILINE)
COMMANDS = {
    page: [shlex.split(line) for line in COMMAND.findall((ROOT / page).read_text())]
    for page in PAGES
}
LONG = ("audit",)
SHORT = [
    page
    for page, lines in COMMANDS.items()
    if any(words[0] not in LONG for words in lines)
]


def people(path: Path, rows: int) -> None:
    """Write a table of the kind that the pages speak of."""
    rng = np.random.default_rng(rows)
    age, hours = rng.integers(18, 90, rows), rng.integers(1, 80, rows)
    frame = pd.DataFrame(
        {"age": age, "hours": hours, "sex": rng.choice(["f", "m"], rows)}
    )
    frame["income"] = np.where(age + hours > 90, "high", "low")
    frame.to_csv(path, index=False)


def called(words: list[str]) -> None:
    """Run a command in this process; an edited schema is reviewed and has bounds."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, (words, done.output, done.exception)
    if words[0] == "schema":
        path = Path(words[words.index("--out") + 1])
        draft = path.read_text(encoding="utf-8")
        draft = draft.replace("reviewed = false", "reviewed = true")
        bounds = 'kind = "numeric"\nlow = 0\nhigh = 120'
        path.write_text(draft.replace('kind = "numeric"', bounds))


@pytest.mark.parametrize("page", SHORT)
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    people(tmp_path / "people.csv", 500)
    people(tmp_path / "new-people.csv", 20)
    for words in COMMANDS[page]:
        if words[0] not in LONG:
            called(words)


def shortened(words: list[str]) -> list[str]:
    """Return a long command with fewer trials."""
    few = re.sub(r"--trials \d+", "", " ".join(words)).replace("--fast", "").split()
    named = [] if "--method" in few else ["--method", "blsgd"]
    return [*few, *named, "--trials", "40"]


@pytest.mark.slow
def test_the_long_commands_of_the_pages_run_when_shortened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [words for page in COMMANDS.values() for words in page if words[0] in LONG]
    asked = {tuple(shortened(words)) for words in lines}
    assert {words[0] for words in asked} == set(LONG)
    for words in sorted(asked):
        called(list(words))


def test_every_command_with_a_page_of_its_own_is_seen():
    """A pattern that finds nothing would pass unseen."""
    assert {"README.md", "docs/cli.md", "docs/quickstart.md"} <= set(SHORT)
    assert sum(map(len, COMMANDS.values())) > 20
