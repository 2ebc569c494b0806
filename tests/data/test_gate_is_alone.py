# SPDX-License-Identifier: Apache-2.0
"""Nothing but the gate names the rows: a static check of every source file.

Python hides nothing, so what keeps the gate alone is that no other module of the
package reaches into it, builds what only it may build, or evaluates a query itself.
"""

import ast
from pathlib import Path

import pytest

import armijo

PACKAGE = Path(armijo.__file__).parent
# A task is called on blocks where they lie; only the gate asks for its total.
GATE = ("data/gate.py", "data/blocks.py", "tables/stream.py", "engines/blocks.py")
SOURCES = {
    path.relative_to(PACKAGE).as_posix(): path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
}
# What only the gate may build, and the calls that only it may make.
BUILT = {"Rows", "PrivateBatch", "leaky_answer"}
CALLED = {"contributions"}
HIDDEN = {"_rows"}
# Answers without a charge: a check for the owner's eyes, and what an attacker knows.
OWNERS = ("networks/train.py", "audit/targets.py")


def _original_names(tree: ast.AST) -> dict[str, str]:
    """Return what the imported names of a module are called where they come from."""
    return {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _aliases(tree: ast.AST, names: dict[str, str]) -> dict[str, str]:
    """Add names that were assigned from one of those: ``R = Rows``."""
    found = dict(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    origin = found.get(node.value.id, node.value.id)
                    found.setdefault(target.id, origin)
    return found


def _called_name(call: ast.Call, names: dict[str, str]) -> str:
    """Return the last part of the name that is called, whatever it was imported as."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    if isinstance(call.func, ast.Name):
        return names.get(call.func.id, call.func.id)
    return ""


def trespasses(source: str) -> list[str]:
    """Name every place where a module does what only the gate may do."""
    tree = ast.parse(source)
    names = _aliases(tree, _original_names(tree))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in HIDDEN:
            found.append(f"line {node.lineno}: .{node.attr}")
        elif isinstance(node, ast.Constant) and node.value in HIDDEN:
            found.append(f"line {node.lineno}: {node.value!r}")
        elif isinstance(node, ast.Call):
            name = _called_name(node, names)
            own_method = isinstance(node.func, ast.Attribute) and name in CALLED
            if name in BUILT or own_method:
                found.append(f"line {node.lineno}: {name}(...)")
    return found


def test_only_the_gate_names_the_rows():
    others = {name: text for name, text in SOURCES.items() if name not in GATE}
    assert len(others) > 20
    found = {name: trespasses(text) for name, text in others.items()}
    owners = {name: found.pop(name) for name in OWNERS}
    assert {name: places for name, places in found.items() if places} == {}
    for places in owners.values():
        assert [place.split(": ")[1] for place in places] == ["leaky_answer(...)"]


def test_the_gate_itself_does_all_of_it():
    """The check finds what it looks for where it must be."""
    found = " ".join(place for name in GATE for place in trespasses(SOURCES[name]))
    for expected in ("._rows", "Rows(...)", "PrivateBatch(...)", "contributions(...)"):
        assert expected in found


@pytest.mark.parametrize(
    "line",
    [
        "x = data._rows.X",
        "x = self.data._rows",
        "data._rows = None",
        "x = getattr(data, '_rows')",
        "x = vars(data)['_rows']",
        "x = Rows(X, y)",
        "x = leaky_answer(source, lambda rows: rows.X)",
        "x = armijo.data.query.Rows(X, y)",
        "from armijo.data.query import Rows as R\nx = R(X, y)",
        "R = Rows\nx = R(X, None)",
        "x = PrivateBatch(rows, plan, randomness)",
        "from armijo.data import gate\nx = gate.PrivateBatch(rows, plan, r)",
        "def f(query, rows):\n    return query.contributions(rows)",
    ],
)
def test_a_planted_trespass_is_found(line):
    assert trespasses(line)


@pytest.mark.parametrize(
    "line",
    [
        "from armijo.data.query import Rows\ndef f(rows: Rows) -> int: ...",
        "def f(batch: PrivateBatch) -> None:\n    batch.noisy_sum(query, mechanism)",
        "query = BoundedQuery(contributions=lambda rows: rows.X, bound=1.0)",
        "n_rows = table.num_rows",
    ],
)
def test_what_a_query_needs_is_allowed(line):
    assert trespasses(line) == []
