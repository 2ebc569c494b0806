# SPDX-License-Identifier: Apache-2.0
"""``python -m armijo_reproduction datasets``: what is printed, and what is refused."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from armijo_reproduction import experiment, experiment_names, runner
from armijo_reproduction.__main__ import app, main
from armijo_reproduction.datasets import DATASETS, DatasetError
from reproduction.tests.experiments.fakes import point, write_fakes
from tests.cli.conftest import parsed, shown
from tests.cli.conftest import program as in_process


@pytest.fixture
def nothing_here(monkeypatch, tmp_path):
    """Make a machine without data and without a network."""
    monkeypatch.setenv("ARMIJO_DATA", str(tmp_path))
    monkeypatch.setenv("ARMIJO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ARMIJO_MIRROR", "http://127.0.0.1:9/")
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)


def run(*words: str):
    return CliRunner().invoke(app, ["datasets", *words])


def test_list_names_every_dataset(nothing_here):
    found = json.loads(run("list", "--json").stdout)["datasets"]
    assert [row["name"] for row in found] == list(DATASETS)
    here = {row["name"]: row["here"] for row in found}
    assert here["generated-census"] is True and here["adult"] is False
    assert "generated-census" in run("list").stdout
    rows = {row["name"]: row for row in found}
    assert rows["cifar-10"]["shape"] == [3, 32, 32]
    assert rows["cifar-10"]["train_rows"] == 50_000
    assert rows["cifar-10-subset"]["rows"] == 12_000
    assert rows["bank"]["shape"] == [32] and rows["bank"]["train_rows"] is None


def test_check_tells_what_is_missing(nothing_here):
    found = json.loads(run("check", "adult", "--json").stdout)
    assert found["complete"] is False
    assert any("missing" in line for line in found["files"])


@pytest.fixture
def one_damaged(nothing_here, tmp_path):
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"\x1f\x8bcut")


def test_check_without_a_name_checks_all(nothing_here):
    result = run("check", "--json")
    found = {row["name"]: row for row in json.loads(result.stdout)["datasets"]}
    assert list(found) == list(DATASETS) and result.exit_code == 0
    assert [name for name, row in found.items() if row["complete"]] == [
        "generated-census"
    ]
    assert all(name in run("check").stdout for name in ("mnist", "cifar-10-subset"))


@pytest.mark.parametrize("words", [("mnist",), ("mnist", "--json"), (), ("--json",)])
def test_check_fails_if_a_file_is_damaged(one_damaged, words):
    result = run("check", *words)
    assert result.exit_code == 2
    # Either the text of one file, or its cells in the table of all files.
    assert re.search("t10k-labels-idx1-ubyte(:| +│) damaged", result.stdout)
    assert run("check", "adult").exit_code == 0


@pytest.mark.parametrize(
    "name", ["adult", "fashion-mnist", "mnist", "cifar-10", "cifar-10-subset"]
)
def test_fetch_without_a_network_says_so(nothing_here, tmp_path, name):
    result = run("fetch", name, "--json")
    assert isinstance(result.exception, DatasetError) and result.stdout == ""
    assert re.search("Cannot download .* Check the network", str(result.exception))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_fetch_of_what_may_not_be_passed_on_says_how_to_obtain_it(nothing_here):
    result = run("fetch", "ipums-us")
    assert isinstance(result.exception, DatasetError)
    assert "--file" in str(result.exception)


def test_fetch_takes_only_the_right_file(nothing_here, tmp_path):
    wrong = tmp_path / "wrong.dat"
    wrong.write_text("1 2 3\n")
    result = run("fetch", "ipums-br", "--file", str(wrong))
    assert isinstance(result.exception, DatasetError)


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
