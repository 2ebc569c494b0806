# SPDX-License-Identifier: Apache-2.0
"""``python -m armijo_reproduction list``, ``run`` and ``figures``."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from armijo_reproduction import experiment, experiment_names, runner
from armijo_reproduction.__main__ import main
from reproduction.tests.experiments.fakes import point, write_fakes
from tests.cli.conftest import parsed, shown
from tests.cli.conftest import program as in_process

PAGE = Path(__file__).parents[2] / "docs" / "reproduction.md"


@pytest.fixture
def program(monkeypatch, capsys):
    return in_process("armijo_reproduction", main, monkeypatch, capsys)


@pytest.fixture
def synthetic_runs(monkeypatch):
    """Let every run take no time and give synthetic numbers."""
    monkeypatch.setattr(runner, "_pool", lambda jobs: ThreadPoolExecutor(1))
    monkeypatch.setattr(runner, "run_one", lambda wanted, key, *_: point(wanted, key))


def test_all_experiments_are_listed(program):
    found = parsed(program("list", "--json"))["experiments"]
    assert [each["name"] for each in found] == list(experiment_names())
    adult = next(each for each in found if each["name"] == "logistic-adult")
    runs = sum(1 for _ in experiment("logistic-adult").run_keys())
    assert adult == {
        "name": "logistic-adult",
        "title": experiment("logistic-adult").title,
        "kind": "convex",
        "runs": runs,
    }
    table = shown(program("list"))
    assert all(name in table for name in experiment_names())


def test_a_run_tells_what_it_did_and_goes_on(program, synthetic_runs, tmp_path):
    words = ("run", "svm-bank", "--fast", "--results", tmp_path, "--json")
    total = sum(1 for _ in experiment("svm-bank", fast=True).run_keys())
    first = parsed(program(*words))
    assert first["experiment"] == "svm-bank" and first["new_runs"] == total
    assert first["results"] == str(tmp_path / "svm-bank-fast.csv")
    assert first["seconds_in_methods"] == pytest.approx(0.5 * total, abs=0.06)
    assert parsed(program(*words))["new_runs"] == 0
    assert "new runs 0" in shown(program(*words[:-1]))


def test_no_minutes_run_nothing(program, synthetic_runs, tmp_path):
    words = ("run", "svm-bank", "--fast", "--results", tmp_path, "--minutes", 0)
    assert parsed(program(*words, "--json"))["new_runs"] == 0


def test_waiting_for_another_experiment_is_told(program, synthetic_runs, tmp_path):
    words = ("run", "zero-tuning", "--fast", "--results", tmp_path, "--json")
    assert parsed(program(*words))["waiting_for_another_experiment"] == 2


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run",), "Missing argument"),
        (("run", "adult"), "There is no experiment 'adult'"),
        (("figures", "--results", "nowhere"), "There are no results in nowhere"),
        (("figures", "mnist", "--results", "{fakes}", "--fast"), "no figure 'mnist'"),
        (
            ("figures", "svm", "--results", "{fakes}", "--fast"),
            "no results yet for svm",
        ),
        (("figures", "--results", "{fakes}"), "There are no results in"),
        (
            ("figures", "evaluations", "--results", "{fakes}", "--fast", "--page", "p"),
            "A page shows all figures",
        ),
    ],
)
def test_errors_name_what_is_wrong(program, tmp_path, monkeypatch, words, told):
    monkeypatch.chdir(tmp_path)
    fakes = tmp_path / "fakes"
    write_fakes(fakes, names=["evaluations"])
    finished = program(*(word.format(fakes=fakes) for word in words))
    assert finished.code == 2 and told in finished.err
    assert [path.name for path in tmp_path.iterdir()] == ["fakes"]


def test_damaged_results_are_refused_by_both_commands(
    program, synthetic_runs, tmp_path
):
    write_fakes(tmp_path, names=["evaluations"])
    path = tmp_path / "evaluations-fast.csv"
    path.write_text(path.read_text().replace("8.0", "eight"))
    for words in (("run", "evaluations"), ("figures",)):
        finished = program(*words, "--fast", "--results", tmp_path)
        assert finished.code == 2
        assert "are damaged" in finished.err and path.name in finished.err


def test_figures_tables_and_page(program, tmp_path):
    write_fakes(tmp_path / "results", names=["evaluations"])
    page, tables = tmp_path / "page.md", tmp_path / "tables.md"
    page.write_text(PAGE.read_text())
    words = ("--results", tmp_path / "results", "--out", tmp_path / "out", "--fast")
    finished = program("figures", *words, "--tables", tables, "--page", page, "--json")
    found = parsed(finished)
    assert found["figures"] == [
        str(tmp_path / "out" / f"{name}.{end}")
        for name in ("evaluations", "evaluations-published")
        for end in ("png", "svg")
    ]
    assert all(Path(path).exists() for path in found["figures"])
    assert "networks" in found["without_results"]
    assert "## evaluations" in tables.read_text()
    text = page.read_text()
    assert "![evaluations](out/evaluations.png)" in text and "not run yet" in text


def test_a_page_without_its_markers_is_left_as_it_is(program, tmp_path):
    write_fakes(tmp_path / "results", names=["evaluations"])
    page = tmp_path / "page.md"
    page.write_text("# A page\n")
    words = ("--results", tmp_path / "results", "--out", tmp_path / "out", "--fast")
    finished = program("figures", *words, "--page", page)
    assert finished.code == 2 and "<!-- begin claims -->" in finished.err
    assert page.read_text() == "# A page\n"
