# SPDX-License-Identifier: Apache-2.0
"""``armijo account`` and ``armijo calibrate``: one object, right numbers, clear errors.

Most runs call ``main`` in this process; a few start the program as a user does.
"""

import json
import subprocess
import sys
from importlib.metadata import version

import dp_accounting as dpa
import pytest
from dp_accounting.rdp import RdpAccountant

import armijo as package
from armijo.accounting.above_threshold import AboveThreshold
from armijo.accounting.budget import Budget
from armijo.accounting.calibration import (
    epsilon_of,
    noise_multiplier_for,
    step_mechanism,
)
from armijo.accounting.paper import BROKEN_PREMISES, printed_epsilon
from armijo.cli import main
from armijo.errors import BudgetExceeded
from tests.cli.conftest import Finished, parsed, shown, words

ACCOUNT = {"--sampling-prob": "0.1", "--noise-multiplier": "5.0", "--steps": "100"}
ACCOUNT |= {"--delta": "1e-5"}
CALIBRATE = {
    "--epsilon": "1",
    "--delta": "1e-5",
    "--sampling-prob": "0.1",
    "--steps": "100",
}
COMMANDS = {"account": ACCOUNT, "calibrate": CALIBRATE}


@pytest.fixture
def run(armijo):
    """Return a function that runs a command with its usual arguments, some changed."""

    def call(command: str, *flags: str, **changed: str) -> Finished:
        options = {f"--{name.replace('_', '-')}": v for name, v in changed.items()}
        return armijo(command, *words(COMMANDS[command] | options), *flags, columns=80)

    return call


def program(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("sampling_prob", "noise_multiplier", "steps", "delta"),
    [(0.005, 1.0, 2000, 1e-5), (0.1, 5.0, 100, 1e-7)],
)
def test_a_planned_epsilon_is_the_librarys(
    run, sampling_prob, noise_multiplier, steps, delta
):
    asked = {"sampling_prob": sampling_prob, "noise_multiplier": noise_multiplier}
    asked |= {"steps": steps, "delta": delta}
    words = {name: str(value) for name, value in asked.items()}
    found = parsed(run("account", "--json", **words))
    library = epsilon_of(step_mechanism(sampling_prob, noise_multiplier), steps, delta)
    assert (found["epsilon"], found["accountant"]) == library
    assert found["accountant"] == "planned-pld"
    assert asked.items() <= found.items()
    assert found["relation"] == "add-remove"
    assert found["guarantee"] is True and found["broken_premises"] == []


def test_an_adaptive_epsilon_is_the_filters(run):
    found = parsed(run("account", "--json", "--adaptive"))
    event = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(5.0))
    peer = RdpAccountant(orders=list(range(2, 200))).compose(event, 100)
    assert found["accountant"] == "filter-rdp"
    assert found["epsilon"] == pytest.approx(peer.get_epsilon(1e-5), rel=1e-4)
    assert found["epsilon"] > parsed(run("account", "--json"))["epsilon"]


@pytest.mark.parametrize(
    ("options", "search"),
    [
        ({"search_epsilon": "0.2"}, AboveThreshold.laplace(0.2)),
        ({"search_epsilon": "0.2", "max_tries": "4"}, AboveThreshold.laplace(0.2, 4)),
        ({"search_rho": "0.02", "max_tries": "9"}, AboveThreshold.gaussian(0.02, 9)),
    ],
)
@pytest.mark.parametrize("flags", [("--json",), ("--json", "--adaptive")])
def test_a_search_is_charged_with_its_batch(run, options, search, flags):
    found = parsed(run("account", *flags, **options))
    name = "adaptive" if "--adaptive" in flags else "planned"
    step = step_mechanism(0.1, 5.0, search)
    expected = epsilon_of(step, 100, 1e-5, accountant=name)
    assert (found["epsilon"], found["accountant"]) == expected
    assert found["epsilon"] > parsed(run("account", *flags))["epsilon"]
    for key in ("search_epsilon", "search_rho", "max_tries"):
        assert found[key] == (float(options[key]) if key in options else None)


def test_known_budgets_of_the_notes_are_met(run):
    """Calibrated once by independent code, whose search curve was a little looser."""
    joint = run(
        "account",
        "--json",
        "--adaptive",
        noise_multiplier="6.0275",
        search_epsilon=str(1 / 6.0275),
        delta="1e-8",
    )
    assert 0.995 < parsed(joint)["epsilon"] < 1.0005
    alone = run("calibrate", "--json", "--adaptive", delta="1e-8")
    assert parsed(alone)["noise_multiplier"] == pytest.approx(5.6701, rel=1e-3)


@pytest.mark.parametrize(
    ("epsilon", "sampling_prob", "steps", "accountant"),
    [(0.3, 0.1, 50, "planned-pld"), (1.0, 1.0, 1, "planned-profile")],
)
def test_calibrated_noise_is_the_librarys(
    run, epsilon, sampling_prob, steps, accountant
):
    asked = {"epsilon": epsilon, "sampling_prob": sampling_prob, "steps": steps}
    words = {name: str(value) for name, value in asked.items()}
    found = parsed(run("calibrate", "--json", **words))
    budget = Budget(epsilon=epsilon, delta=1e-5)
    noise = noise_multiplier_for(budget, sampling_prob=sampling_prob, steps=steps)
    assert found["noise_multiplier"] == noise
    assert asked.items() <= found.items() and found["delta"] == 1e-5
    assert found["accountant"] == accountant
    assert epsilon * 0.998 < found["epsilon_reached"] <= epsilon
    assert found["gradient_rho"] == pytest.approx(0.5 / noise**2)


@pytest.mark.parametrize(
    "options", [{"search_epsilon": "0.2"}, {"search_rho": "0.02", "max_tries": "9"}]
)
def test_calibrated_noise_pays_for_the_search_too(run, options):
    found = parsed(run("calibrate", "--json", **options))
    alone = parsed(run("calibrate", "--json"))
    assert found["noise_multiplier"] > alone["noise_multiplier"]
    assert 0.99 < found["epsilon_reached"] <= 1.0
    again = run(
        "account", "--json", noise_multiplier=repr(found["noise_multiplier"]), **options
    )
    assert parsed(again)["epsilon"] == found["epsilon_reached"]


def test_paper_accounting_carries_no_guarantee(run):
    finished = run(
        "account", "--json", accounting="paper", search_rho="0.02", max_tries="9"
    )
    found = parsed(finished)
    step = step_mechanism(0.1, 5.0, AboveThreshold.gaussian(0.02, 9))
    assert found["epsilon"] == printed_epsilon(step, 100, 1e-5)
    assert found["guarantee"] is False
    assert found["broken_premises"] == list(BROKEN_PREMISES)
    assert "paper" in found["accountant"]
    assert "Warning" in finished.err and "not a valid guarantee" in finished.err
    assert run("account", "--json").err == ""


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("account", {}),
        ("account", {"accounting": "paper"}),
        ("account", {"search_rho": "0.02", "max_tries": "9"}),
        ("calibrate", {}),
    ],
)
def test_tables_are_whole_within_eighty_columns(run, command, options):
    as_json = parsed(run(command, "--json", **options))
    finished = run(command, **options)
    lines = finished.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert "…" not in finished.out
    text = shown(finished)
    for key, value in as_json.items():
        written = f"{value:.6g}" if isinstance(value, float) else str(value)
        if isinstance(value, list):
            written = " ".join(f"- {item}" for item in value) or "none"
        assert f"{key.replace('_', ' ')} {'none' if value is None else written}" in text


RATE = "probability"
BAD = [
    *(("account", "sampling_prob", v, RATE) for v in ("0", "-0.5", "1.5")),
    *(("calibrate", "sampling_prob", v, RATE) for v in ("0", "-0.5", "1.5")),
    *(("account", "noise_multiplier", v, "above zero") for v in ("0", "-1")),
    *(("calibrate", "epsilon", v, "above zero") for v in ("0", "-1")),
    *(("account", "steps", v, "1 or more") for v in ("0", "-3")),
    *(("calibrate", "steps", v, "1 or more") for v in ("0", "-3")),
    *(("account", "delta", v, "between zero and one") for v in ("0", "1", "2", "-1")),
    *(("calibrate", "delta", v, "between zero and one") for v in ("0", "1", "2", "-1")),
    *(("account", "search_epsilon", v, "above zero") for v in ("0", "-1")),
    *(("calibrate", "search_epsilon", v, "above zero") for v in ("0", "-1")),
    ("account", "accounting", "magic", "pick one"),
]
NUMBERS = {
    "account": ["sampling_prob", "noise_multiplier", "delta", "search_epsilon"],
    "calibrate": ["sampling_prob", "epsilon", "delta", "search_epsilon"],
}
for _command, _names in NUMBERS.items():
    BAD += [(_command, name, v, "give") for name in _names for v in ("nan", "inf")]


def names(message: str, argument: str) -> bool:
    """Say whether a message names the argument, as an option or as a Python name."""
    return argument in message or f"--{argument.replace('_', '-')}" in message


@pytest.mark.parametrize(("command", "argument", "value", "remedy"), BAD)
def test_a_bad_argument_is_named_with_its_value_and_the_remedy(
    run, command, argument, value, remedy
):
    finished = run(command, "--json", **{argument: value})
    assert finished.code == 2
    assert finished.out == ""
    assert finished.err.startswith("Error: ")
    assert names(finished.err, argument)
    assert value in finished.err
    assert remedy in finished.err


@pytest.mark.parametrize("command", ["account", "calibrate"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_bad_gaussian_search_is_named(run, command, value):
    finished = run(command, "--json", search_rho=value, max_tries="5")
    assert finished.code == 2 and finished.out == ""
    assert names(finished.err, "search_rho")
    assert value in finished.err and "give" in finished.err


@pytest.mark.parametrize("command", ["account", "calibrate"])
@pytest.mark.parametrize(
    "search", [{"search_rho": "0.1"}, {"search_epsilon": "0.1"}, {}]
)
@pytest.mark.parametrize("value", ["0", "-2"])
def test_a_bad_cap_is_named_as_the_user_wrote_it(run, command, search, value):
    finished = run(command, "--json", max_tries=value, **search)
    assert finished.code == 2 and finished.out == ""
    assert names(finished.err, "max_tries")
    assert value in finished.err


@pytest.mark.parametrize("command", ["account", "calibrate"])
def test_searches_that_cannot_be_are_refused(run, command):
    both = run(command, search_epsilon="0.1", search_rho="0.2", max_tries="5")
    assert both.code == 2
    assert all(word in both.err for word in ("--search-epsilon", "--search-rho"))
    assert "0.1" in both.err and "0.2" in both.err
    uncapped = run(command, search_rho="0.2")
    assert uncapped.code == 2 and "--max-tries" in uncapped.err


@pytest.mark.parametrize("command", ["account", "calibrate"])
@pytest.mark.parametrize(
    ("argument", "value"),
    [("steps", "1.5"), ("sampling_prob", "half"), ("unknown", "1")],
)
def test_words_that_do_not_parse_are_refused(run, command, argument, value):
    finished = run(command, "--json", **{argument: value})
    assert finished.code == 2 and finished.out == ""
    assert f"--{argument.replace('_', '-')}" in finished.err


@pytest.mark.parametrize("flags", [("--json",), ("--json", "--adaptive")])
@pytest.mark.parametrize("noise", ["1e5", "1e100"])
def test_enormous_noise_costs_next_to_nothing(run, noise, flags):
    found = parsed(run("account", *flags, noise_multiplier=noise))
    assert 0 <= found["epsilon"] < 0.01


@pytest.mark.parametrize(
    ("command", "argument", "value"),
    [
        ("account", "noise_multiplier", "1e-200"),
        ("account", "noise_multiplier", "1e200"),
        ("account", "delta", "1e-320"),
        ("calibrate", "delta", "1e-320"),
    ],
)
def test_extreme_numbers_end_in_an_answer_or_a_named_error(
    run, command, argument, value
):
    finished = run(command, "--json", **{argument: value})
    assert finished.code in (0, 2)
    assert finished.code == 0 or names(finished.err, argument)


def test_a_search_that_costs_more_than_the_budget_leaves_no_noise_to_find(run):
    finished = run("calibrate", "--json", search_epsilon="50")
    assert finished.code == 2 and finished.out == ""
    assert (
        "epsilon 1" in finished.err and "lower the budget of the search" in finished.err
    )


def test_an_exhausted_budget_has_its_own_exit_code(monkeypatch, capsys):
    def exhausted() -> None:
        raise BudgetExceeded("Charge 7 would bring the run to 1.02 times epsilon 1.")

    monkeypatch.setattr("armijo.cli.app", exhausted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 3
    out, err = capsys.readouterr()
    assert out == "" and "Charge 7" in err


def test_a_missing_argument_is_asked_for(armijo):
    ended = armijo("account", "--sampling-prob", "0.1")
    assert ended.code == 2
    assert "--noise-multiplier" in ended.err


def test_the_program_runs_as_a_user_runs_it():
    good = program("-m", "armijo", "account", *words(ACCOUNT), "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["epsilon"] == pytest.approx(0.93, abs=0.2)
    bad = program("-m", "armijo", "account", *words(ACCOUNT), "--steps", "0")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "Traceback" not in bad.stderr and "steps" in bad.stderr


def test_little_noise_does_not_need_the_memory_of_the_machine():
    """A privacy loss of millions on a fine lattice would be an array of gigabytes."""
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30));"
        "from armijo.cli import main; main()"
    )
    found = program(
        "-c", code, "account", *words(ACCOUNT), "--noise-multiplier=0.001", "--json"
    )
    assert found.returncode == 0, found.stderr[-300:]
    assert json.loads(found.stdout)["epsilon"] > 1e5


def test_accounting_starts_without_torch():
    code = "import sys, armijo.cli; sys.exit('torch' in sys.modules)"
    assert program("-c", code).returncode == 0


def test_the_version_is_printed(armijo):
    done = armijo("--version")
    assert done == (0, f"armijo {package.__version__}\n", "")
    assert version("armijo") == package.__version__
