# SPDX-License-Identifier: Apache-2.0
"""``armijo verify``: finished runs pass, and tampering is seen and named."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from armijo.accounting.budget import Budget
from armijo.accounting.ledger import OWN_KEYS, Ledger, read_ledger, seal
from armijo.cli.fit import fit_table
from armijo.errors import LedgerError
from armijo.estimators import solve
from armijo.methods import DPSGD
from armijo.report.verify import verify_run
from tests.cli.small import Small, stop_after
from tests.networks.network_doubles import network, prepared
from tests.training.files import put_together, taken_apart

METHODS = {
    "auto": {},
    "blsgd": {
        "max_batches": 12,
        "options": {"expected_steps": 10, "search_form": "difference"},
    },
    "sgd": {},
    "objpert": {"options": {"data_norm": 2.0}},
}
FILES = ("model.json", "schema.toml", "report.json", "report.html", "ledger.jsonl")


def settings(method: str) -> dict[str, Any]:
    return {"method": method, **METHODS[method]}


@pytest.fixture(scope="session")
def runs(small: Small, tmp_path_factory) -> dict[str, Path]:
    """Finished runs; tests copy them. There are two of sgd with the same settings."""
    found = {}
    for name in (*METHODS, "twin"):
        method = "sgd" if name == "twin" else name
        given = settings(method)
        out = tmp_path_factory.mktemp("verify") / name
        found[name] = fit(small, out, given)
    return found


def fit(small: Small, out: Path, given: dict[str, Any]) -> Path:
    usual = {"epsilon": 1.0, "delta": 1e-5}
    return fit_table(
        small.csv,
        schema=small.schema,
        out=out,
        kind="logistic",
        parameters={**usual, **given},
    ).folder


@pytest.fixture(scope="session")
def bare(tmp_path_factory) -> Path:
    """The ledger of a run without a folder."""
    path = tmp_path_factory.mktemp("bare") / "run.ledger"
    draw = np.random.default_rng(0)
    X = draw.normal(size=(200, 3))
    y = np.where(X[:, 0] > 0, 1.0, -1.0)
    budget = Budget(epsilon=1.0, delta=1e-5)
    solve(X, y, method=DPSGD(steps=5), budget=budget, ledger=path)
    return path


@pytest.fixture(scope="session")
def trained_network(tmp_path_factory) -> Path:
    """The checkpoint of a network; its ledger lies beside it."""
    path = tmp_path_factory.mktemp("network") / "net.checkpoint"
    prepared(network(), method="sgd", steps=3, checkpoint=path).run()
    return path


# ------------------------------------------------------------------ what passes


@pytest.mark.parametrize("name", METHODS)
def test_a_finished_fit_verifies(armijo, runs, name):
    found = armijo("verify", runs[name], "--json")
    assert found.code == 0, found.err
    result = json.loads(found.out)
    assert result["verified"] is True and result["faults"] == []
    assert 0 < result["epsilon_recomputed"] <= 1.0 * (1 + result["tolerance"])
    assert result["not_recomputed"] == []
    second = name in ("blsgd", "objpert")
    by = "second implementation" if second else "dp-accounting"
    assert result["recomputed_by"].startswith(by)
    assert "verified: " in armijo("show", runs[name]).out


def test_a_ledger_alone_and_the_one_in_a_folder_verify(armijo, bare, runs):
    assert armijo("verify", bare).code == 0
    assert armijo("verify", runs["sgd"] / "ledger.jsonl").code == 0


def test_a_network_verifies_by_checkpoint_and_by_ledger(armijo, trained_network):
    beside = trained_network.with_name(trained_network.name + ".ledger")
    assert armijo("verify", trained_network).code == 0
    assert armijo("verify", beside).code == 0
    assert armijo("verify", trained_network, "--ledger", beside).code == 0


def test_the_closing_line_has_digests_of_all_files(runs):
    view = read_ledger(runs["sgd"] / "ledger.jsonl")
    assert view.closing is not None and view.closing.charges == len(view.charges)
    assert set(view.closing.digests) == {"parameters", *FILES[:-1]}
    for name in FILES[:-1]:
        data = (runs["sgd"] / name).read_bytes()
        assert view.closing.digests[name] == sha256(data).hexdigest()
    for key in ("created", "created_by", "sampler", "arithmetic", "relation"):
        assert view.header[key]


def test_an_unfinished_run_is_said_to_be_so(armijo, small, tmp_path):
    small.fit(tmp_path / "run", callback=stop_after(2))
    found = armijo("verify", tmp_path / "run", "--json")
    result = json.loads(found.out)
    assert found.code == 4 and result["state"] == "unfinished"
    assert result["verified"] is False and result["faults"] == []
    assert "unfinished" in found.err and "ledger.jsonl" in found.err
    shown = armijo("show", tmp_path / "run", "--json")
    assert shown.code == 0 and "unfinished" in json.loads(shown.out)["verdict"]


def test_what_is_not_there_is_a_bad_argument(armijo, tmp_path):
    found = armijo("verify", tmp_path / "none")
    assert found.code == 2 and str(tmp_path / "none") in found.err


def test_a_run_without_a_guarantee_says_so(armijo, small, tmp_path):
    run = fit(small, tmp_path / "run", settings("sgd") | {"random_state": 1})
    found = armijo("verify", run, "--json")
    result = json.loads(found.out)
    assert found.code == 0 and result["guarantee"] is False
    assert "no guarantee is claimed" in result["verdict"]


def test_a_ledger_of_version_1_is_refused_by_its_version(armijo, bare, tmp_path):
    path = tmp_path / "old.ledger"
    path.write_bytes(bare.read_bytes().replace(b'"version":3', b'"version":1', 1))
    found = armijo("verify", path)
    assert found.code == 4 and "has version 1" in found.err
    assert "with the release that began it" in found.err


# ------------------------------------------------------------------ closing


def test_a_closed_ledger_takes_no_charge_until_it_is_opened_again(bare, tmp_path):
    path = tmp_path / "run.ledger"
    shutil.copy(bare, path)
    view = read_ledger(path)
    header = {k: v for k, v in view.header.items() if k not in OWN_KEYS}
    with Ledger.open(path, header=header) as ledger:
        ledger.finish(view.closing.digests)  # the same line: nothing is written
        assert path.read_bytes() == bare.read_bytes()
        charge = view.charges[0]
        with pytest.raises(LedgerError, match=r"run has ended.*opens the ledger again"):
            ledger.append(replace(charge, index=ledger.next_index))
    with Ledger.open(path, header=header) as ledger:
        ledger.append(replace(charge, index=ledger.next_index))
        assert read_ledger(path).closing is None
        ledger.finish({})
    assert read_ledger(path).closing.charges == len(view.charges) + 1
    assert not verify_run(path).verified  # more than was planned


@pytest.mark.parametrize("left", [1, 15, 16, 40, 120])
def test_a_torn_closing_line_is_like_none(bare, tmp_path, left):
    path = tmp_path / "run.ledger"
    *lines, last = bare.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines) + last[:left])
    view = read_ledger(path)
    assert view.closing is None and view.charges == read_ledger(bare).charges
    assert verify_run(path).state == "unfinished"


# ------------------------------------------------------------------ tampering


def lines_of(run: Path) -> list[dict[str, Any]]:
    text = (run / "ledger.jsonl").read_text()
    found = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in one.items() if k != "chain"} for one in found]


def reseal(run: Path, lines: list[dict[str, Any]]) -> None:
    """Write lines with a chain that fits, as an attacker would."""
    chain, content = b"", b""
    for one in lines:
        payload = json.dumps(one, separators=(",", ":")).encode()
        line, chain = seal(chain, payload)
        content += line + b"\n"
    (run / "ledger.jsonl").write_bytes(content)


def heal(run: Path) -> None:
    """Make model, report, digests and chain consistent with the ledger's lines."""
    lines = [one for one in lines_of(run) if one.get("kind") != "closed"]
    closed = lines_of(run)[-1]
    reseal(run, [*lines, closed | {"charges": count(lines)}])
    view = read_ledger(run / "ledger.jsonl")
    for name in ("model.json", "report.json"):
        document = json.loads((run / name).read_text())
        for key in ("epsilon", "delta", "relation", "accountant", "sampler"):
            document["privacy"][key] = view.header[key]
        document["privacy"] |= {
            "ledger_head": view.head,
            "n_charges": len(view.charges),
            "ledger_run": view.header["run"],
        }
        (run / name).write_text(json.dumps(document))
    digests = dict(closed["digests"])
    for name in FILES[:-1]:
        digests[name] = sha256((run / name).read_bytes()).hexdigest()
    reseal(run, [*lines, closed | {"charges": count(lines), "digests": digests}])


def count(lines: list[dict[str, Any]]) -> int:
    return sum(one.get("kind") == "charge" for one in lines)


def edit_text(name: str, old: str, new: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text, text[:500]
        (run / name).write_text(text.replace(old, new, 1))

    return edit


def edit_json(name: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        document = json.loads((run / name).read_text())
        change(document)
        (run / name).write_text(json.dumps(document, indent=1) + "\n")

    return edit


def raw(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        path = run / "ledger.jsonl"
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(change(lines)))

    return edit


def forged(change: Callable[[list[dict[str, Any]]], Any], *, healed: bool = False):
    """Change lines and recompute the chain; healed: all other files as well."""

    def edit(run: Path) -> None:
        lines = lines_of(run)
        reseal(run, change(lines) or lines)
        if healed:
            heal(run)

    return edit


def header(**values: Any) -> Callable[[list[dict[str, Any]]], None]:
    return lambda lines: lines[0].update(values)


def less_noise(described: Any) -> None:
    """Divide every noise scale in a description by three."""
    if isinstance(described, dict):
        for key, value in described.items():
            if key.endswith("_scale") and isinstance(value, float):
                described[key] = value / 3
            less_noise(value)
    elif isinstance(described, list):
        for one in described:
            less_noise(one)


def less_noise_in(lines: list[dict[str, Any]]) -> None:
    for one in lines:
        less_noise(one.get("mechanism"))
        less_noise(one.get("plan"))


def one_with_less_noise(lines: list[dict[str, Any]]) -> None:
    less_noise(next(one for one in lines if one.get("kind") == "charge")["mechanism"])


def cheaper(factor: float) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        for one in lines:
            if one.get("kind") == "charge":
                one["cost"] = [cost * factor for cost in one["cost"]]

    return change


def one_charge_more(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    charges = [one for one in lines if one.get("kind") == "charge"]
    extra = charges[-1] | {"index": len(charges)}
    at = lines.index(charges[-1]) + 1
    closed = [one | {"charges": len(charges) + 1} for one in lines[at:]]
    return [*lines[:at], extra, *closed]


def one_charge_less(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    charges = [one for one in lines if one.get("kind") == "charge"]
    kept = [one for one in lines if one is not charges[-1]]
    closed = {"charges": len(charges) - 1}
    return [one | closed if one.get("kind") == "closed" else one for one in kept]


def first_weight(document: Any) -> None:
    document["coef"][0][0] += 1e-9


def swap_files(one: str, other: str) -> Callable[[Path], None]:
    def edit(run: Path) -> None:
        (run / one).rename(run / "aside")
        (run / other).rename(run / one)
        (run / "aside").rename(run / other)

    return edit


def claims(value: float) -> Callable[[Any], None]:
    return lambda document: document["privacy"].update(epsilon=value)


def without(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


LEDGER, MODEL, SCHEMA, REPORT = (
    "ledger.jsonl",
    "model.json",
    "schema.toml",
    "report.json",
)
BOUND_IN_MODEL = edit_json(
    MODEL, lambda document: document["schema"]["columns"][0].update(high=90)
)
# (run, the file at fault): {name: what is done to its folder}
TAMPERINGS: dict[tuple[str, str], dict[str, Callable[[Path], None]]] = {
    ("sgd", LEDGER): {
        "closing line cut": raw(lambda lines: lines[:-1]),
        "both closing lines cut": raw(lambda lines: lines[:-2]),
        "a charge cut at the end": raw(lambda lines: lines[:-3]),
        "closing line torn": raw(lambda lines: [*lines[:-1], lines[-1][:60]]),
        "two lines swapped": raw(lambda x: [*x[:3], x[4], x[3], *x[5:]]),
        "a line doubled": raw(lambda lines: [*lines[:4], lines[3], *lines[4:]]),
        "a line in the middle lost": raw(lambda lines: [*lines[:3], *lines[4:]]),
        "closing line doubled in front": raw(lambda x: [x[0], x[-1], *x[1:]]),
        "noise edited": edit_text(LEDGER, '"noise_scale":', '"noise_scale":1'),
        "header epsilon edited": edit_text(LEDGER, '"epsilon":1.0', '"epsilon":0.5'),
        "ledger emptied": raw(lambda lines: []),
        "ledger replaced by text": raw(lambda lines: [b"no ledger\n"]),
        "ledger missing": without(LEDGER),
        # Whoever recomputes the chain, but no other file:
        "forged header epsilon": forged(header(epsilon=2.0)),
        "forged header delta": forged(header(delta=1e-9)),
        "forged header relation": forged(header(relation="add-remove ")),
        "forged header replace-one": forged(header(relation="replace-one")),
        "forged header sampler": forged(header(sampler="some bits")),
        "forged header run": forged(header(run="0" * 32)),
        "forged noise": forged(one_with_less_noise),
        "forged charge more": forged(one_charge_more),
        # Whoever recomputes everything, but whose epsilon does not follow:
        "all forged, less noise, planned": forged(less_noise_in, healed=True),
        "all forged, epsilon": forged(header(epsilon=0.5), healed=True),
        "all forged, delta": forged(header(delta=1e-12), healed=True),
        "all forged, not in the plan": forged(one_with_less_noise, healed=True),
        "all forged, more than planned": forged(one_charge_more, healed=True),
        "all forged, replace-one": forged(header(relation="replace-one"), healed=True),
    },
    ("blsgd", LEDGER): {
        "half of the lines cut": raw(lambda lines: lines[:6]),
        "cost edited": edit_text(LEDGER, '"cost":[', '"cost":[1'),
        "forged cost, cheaper": forged(cheaper(0.5)),
        "forged charge less": forged(one_charge_less),
        "all forged, less noise, filter": forged(less_noise_in, healed=True),
        "all forged, less noise in one charge": forged(
            one_with_less_noise, healed=True
        ),
        "all forged, filter epsilon": forged(header(epsilon=0.5), healed=True),
        "all forged, cheaper": forged(cheaper(0.5), healed=True),
        "all forged, a little cheaper": forged(cheaper(0.9), healed=True),
        "all forged, another accountant": forged(
            header(accountant="planned-pld"), healed=True
        ),
    },
    ("auto", LEDGER): {
        "all forged, less noise, exact": forged(less_noise_in, healed=True)
    },
    ("objpert", LEDGER): {
        "all forged, less noise, one release": forged(less_noise_in, healed=True)
    },
    ("sgd", MODEL): {
        "weight changed": edit_json(MODEL, first_weight),
        "model says less epsilon": edit_json(MODEL, claims(0.1)),
        "model truncated": lambda run: (run / MODEL).write_bytes(
            (run / MODEL).read_bytes()[:-40]
        ),
        "model with a space more": edit_text(MODEL, "{", "{ "),
        "schema bound in the model changed": BOUND_IN_MODEL,
        "model missing": without(MODEL),
        "model renamed": lambda run: (run / MODEL).rename(run / "weights.json"),
        "model and report exchanged": swap_files(MODEL, REPORT),
    },
    ("sgd", SCHEMA): {
        "schema bound changed": edit_text(SCHEMA, "200", "201"),
        "schema missing": without(SCHEMA),
    },
    ("sgd", REPORT): {
        "report epsilon changed": edit_json(REPORT, claims(0.1)),
        "report missing": without(REPORT),
    },
    ("sgd", "report.html"): {
        "report page changed": lambda run: (run / "report.html").write_text("0.01")
    },
}


@pytest.mark.parametrize(
    ("of", "at_fault", "name"),
    [(*where, name) for where, kinds in TAMPERINGS.items() for name in kinds],
)
def test_tampering_is_seen_and_named(armijo, runs, tmp_path, of, at_fault, name):
    run = tmp_path / "run"
    shutil.copytree(runs[of], run)
    before = {file: (run / file).read_bytes() for file in FILES}
    TAMPERINGS[of, at_fault][name](run)
    after = {file: (run / file).read_bytes() for file in FILES if (run / file).exists()}
    assert after != before, "nothing was tampered with"
    found = armijo("verify", run, "--json")
    result = json.loads(found.out)
    assert found.code == 4 and result["verified"] is False
    named = {Path(one["file"]).name for one in result["faults"]}
    assert at_fault in named, result["faults"]
    assert at_fault in found.err
    if name.startswith("all forged"):
        assert named == {LEDGER}, result["faults"]  # the rest is consistent
    assert {f: (run / f).read_bytes() for f in after} == after  # reading only


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_twin_is_seen(armijo, runs, tmp_path, name):
    """The twin has the same settings, schema and table, and other noise."""
    run = tmp_path / "run"
    shutil.copytree(runs["sgd"], run)
    shutil.copy(runs["twin"] / name, run / name)
    found = armijo("verify", run)
    if name == "schema.toml":  # the very same file
        assert found.code == 0
        return
    assert found.code == 4 and name in found.err


@pytest.mark.parametrize("name", METHODS)
def test_forging_by_itself_is_not_seen(armijo, runs, tmp_path, name):
    """Who rewrites all files with a true accounting is not seen: no signature.

    So what is seen of the forgeries above is that epsilon does not follow.
    """
    run = tmp_path / "run"
    shutil.copytree(runs[name], run)
    edit_text("report.html", "<", "<!-- another page --><")(run)
    heal(run)
    assert armijo("verify", run).code == 0


def test_a_checkpoint_of_another_network_is_seen(armijo, trained_network, tmp_path):
    other = tmp_path / "net.checkpoint"
    prepared(network(), method="sgd", steps=3, checkpoint=other).run()
    beside = other.with_name(other.name + ".ledger")
    shutil.copy(trained_network, other)
    found = armijo("verify", other, "--ledger", beside)
    assert found.code == 4 and "belongs to the ledger" in found.err
    other.write_bytes(other.read_bytes()[:-100])
    found = armijo("verify", other)
    assert found.code == 4 and other.name in found.err


def test_changed_parameters_of_a_network_are_seen(armijo, trained_network, tmp_path):
    path = tmp_path / "net.checkpoint"
    for name in (path.name, path.name + ".ledger"):
        shutil.copy(trained_network.with_name(name), tmp_path / name)
    document, vectors = taken_apart(path.read_bytes())
    vectors["w"][0] += 1.0
    path.write_bytes(put_together(document, vectors))
    found = armijo("verify", path)
    assert found.code == 4 and "parameters are not those" in found.err
    assert path.name in found.err


@pytest.mark.parametrize(
    "change",
    [less_noise_in, one_charge_more, header(epsilon=0.3), header(sampler="other")],
)
def test_a_forged_bare_ledger_is_seen(armijo, bare, tmp_path, change):
    shutil.copy(bare, tmp_path / "ledger.jsonl")
    forged(change)(tmp_path)
    (tmp_path / "ledger.jsonl").rename(tmp_path / "run.ledger")
    found = armijo("verify", tmp_path / "run.ledger")
    assert found.code == 4 and "run.ledger" in found.err
