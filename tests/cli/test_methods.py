# SPDX-License-Identifier: Apache-2.0
"""``armijo methods``, and ``armijo fit --method`` for those without a line search."""

import json

import pytest

from armijo.accounting.accountants import NOT_PRIVATE
from armijo.accounting.ledger import read_ledger
from armijo.cli.commands import parsed_option
from armijo.estimators.model_file import load_model
from armijo.registry import METHODS
from tests.cli.conftest import parsed, words

BUDGET = {"--epsilon": "1", "--delta": "1e-5", "--model": "logistic"}
SAMPLED = ("--option", "sampling_prob=0.5")


@pytest.fixture
def fit(armijo, small, tmp_path):
    def call(*flags):
        options = {"--schema": str(small.schema), "--out": str(tmp_path / "run")}
        return armijo("fit", small.csv, *words(BUDGET | options), *flags)

    return call


def test_all_methods_are_listed(armijo):
    found = parsed(armijo("methods", "--json"))["methods"]
    assert {one["name"] for one in found} == set(METHODS)
    shown = armijo("methods")
    assert shown.code == 0
    assert all(one["summary"] in shown.out for one in found)


@pytest.mark.parametrize(
    ("flags", "relation"),
    [
        (("--method", "objpert", "--option", "data_norm=2"), "add-remove"),
        (("--method", "objpert-pure", "--option", "data_norm=2"), "replace-one"),
        (("--method", "outpert-gd", "--option", "data_norm=2"), "replace-one"),
        (("--method", "sgd", "--option", "steps=5", *SAMPLED), "add-remove"),
        (("--method", "majority"), "add-remove"),
        (("--method", "sgd-tuned", "--option", "step_sizes=[0.5,1]"), "add-remove"),
    ],
)
def test_a_fit_by_another_method(fit, armijo, small, tmp_path, flags, relation):
    found = parsed(fit("--json", *flags))
    assert found["relation"] == relation
    assert f"under the {relation} relation" in found["statement"]
    model = load_model(tmp_path / "run" / "model.json")
    assert (model.data_norm is not None) == any("norm" in flag for flag in flags)
    predicted = armijo("predict", tmp_path / "run", small.csv)
    assert predicted.code == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["settings"]["method"] == flags[1]


def test_without_privacy_the_terminal_says_so(fit):
    finished = fit("--method", "nonprivate")
    assert finished.code == 0
    assert NOT_PRIVATE in finished.err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--method", "objpert"), "data_norm"),
        (("--method", "objpert", "--option", "data_norm=1", *SAMPLED), "sampling_prob"),
        (("--method", "sgd", "--option", "speed=3"), "does not take speed"),
        (("--method", "sgd", "--option", "steps"), "NAME=VALUE"),
        (("--method", "sgd", "--option", "steps=0"), "steps"),
        (("--method", "majority", "--option", "expected_steps=3"), "expected_steps"),
    ],
)
def test_a_bad_parameter_is_refused_by_name_and_spends_nothing(
    fit, tmp_path, flags, told
):
    finished = fit(*flags)
    assert finished.code == 2
    assert told in finished.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", ["1e300", "1e110"])
def test_a_fit_that_diverges_has_an_exit_code_of_its_own(fit, armijo, tmp_path, size):
    """Such weights are no model; the run is over, and what it spent is told."""
    flags = ("--method", "sgd", "--option", "steps=40", "--option")
    finished = fit(*flags, f"step_size={size}")
    assert finished.code == 5
    assert "diverged" in finished.err and "smaller step size" in finished.err
    view = read_ledger(tmp_path / "run" / "ledger.jsonl")
    assert f"The {len(view.charges)} charges" in finished.err
    assert len(view.charges) < 40
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left <= {"ledger.jsonl", "ledger.jsonl.lock"}
    found = parsed(armijo("show", tmp_path / "run", "--json"))
    assert found["state"] == "ended without a model" and "remedy" not in found
    again = fit(*flags, f"step_size={size}", "--resume")
    assert again.code == 2 and "start without --resume" in again.err
    assert fit(*flags, "step_size=0.5", "--overwrite").code == 0


def test_options_are_json_or_text():
    assert parsed_option("a=1.5") == ("a", 1.5)
    assert parsed_option("a=[1, 2]") == ("a", [1, 2])
    assert parsed_option("a=replica") == ("a", "replica")
    assert parsed_option("a=b=c") == ("a", "b=c")
