# SPDX-License-Identifier: Apache-2.0
"""``python -m armijo_reproduction datasets``: what is printed, and what is refused."""

import json
import re

import pytest
from typer.testing import CliRunner

from armijo_reproduction.__main__ import app
from armijo_reproduction.datasets import DATASETS, DatasetError


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
