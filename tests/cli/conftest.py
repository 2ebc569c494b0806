# SPDX-License-Identifier: Apache-2.0
"""Run the table commands in this process, on a small table."""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from armijo.accounting.ledger import read_ledger
from armijo.cli import main
from tests.cli.small import finished, seeded, small

__all__ = ["finished", "seeded", "small"]

USUAL = {
    "--epsilon": "1",
    "--delta": "1e-5",
    "--model": "logistic",
    "--method": "blsgd",
}
OPTIONS = {"expected_steps": 10, "search_form": "difference", "sampling_prob": 0.1}


class Finished(NamedTuple):
    """How a run ended; what it wrote on stderr is one line."""

    code: int
    out: str
    err: str


def program(name, main, monkeypatch, capsys):
    """Return a function that runs a program in this process with some words."""

    def call(*words: object, columns: int = 400) -> Finished:
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        monkeypatch.setenv("COLUMNS", str(columns))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Finished(ended.value.code or 0, out, " ".join(err.split()))

    return call


@pytest.fixture
def armijo(monkeypatch, capsys):
    return program("armijo", main, monkeypatch, capsys)


def words(options: dict[str, str]) -> list[str]:
    return [word for pair in options.items() for word in pair]


def option_words(options: dict[str, object]) -> list[str]:
    pairs = (f"{name}={value}" for name, value in options.items())
    return [word for pair in pairs for word in ("--option", pair)]


@pytest.fixture
def fit(armijo, small, tmp_path):
    """Return a function that fits into ``tmp_path / "run"``, some options changed."""

    def call(*flags: str, table: object = small.csv, **changed: object) -> Finished:
        options = {"--schema": str(small.schema), "--out": str(tmp_path / "run")}
        of_method = OPTIONS | {k: changed.pop(k) for k in OPTIONS if k in changed}
        given = {f"--{k.replace('_', '-')}": str(v) for k, v in changed.items()}
        line = (*words(USUAL | options | given), *option_words(of_method))
        return armijo("fit", table, *line, *flags)

    return call


def parsed(finished: Finished) -> dict[str, Any]:
    """Return the one JSON object that a run printed, and nothing but it."""
    assert finished.code == 0, finished.err
    assert finished.out.endswith("}\n") and finished.out.count("\n") == 1
    return json.loads(finished.out)


def shown(finished: Finished) -> str:
    """Return a table on one line, without its frame."""
    assert finished.code == 0, finished.err
    return " ".join(finished.out.replace("│", " ").split())


def spent_nothing(folder: Path) -> bool:
    """Say whether a ledger is not there or has no charge."""
    path = folder / "ledger.jsonl"
    return not path.exists() or not read_ledger(path).charges


@pytest.fixture
def trained(seeded) -> Path:
    """The folder of a seeded run; tests only read it."""
    return seeded.folder
