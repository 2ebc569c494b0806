# SPDX-License-Identifier: Apache-2.0
"""TOML text is what the standard library reads back."""

import tomllib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from armijo.tables.toml_writer import render

# A shared machine may be slow; that is no failure.
RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    text, st.booleans(), st.floats(allow_nan=False, allow_infinity=False)
)


@RELAXED
@given(values | st.lists(values) | st.integers(-(2**63), 2**63 - 1), text, text)
def test_values_and_comments_survive(value, note, heading):
    notes = {(None, "a"): note, ("n", None): note, ("n", "b"): note}
    columns = [{"name": "n", "b": value}]
    written = render({"a": value}, columns, heading=[heading], notes=notes)
    expected = {"a": value, "columns": [{"name": "n", "b": value}]}
    assert tomllib.loads(written) == expected


def test_long_lists_take_a_line_per_entry():
    levels = [f"level number {i}" for i in range(6)]
    written = render({"a": levels}, [], notes={(None, "a"): "why"})
    assert written.splitlines()[:2] == ["a = [  # why", '    "level number 0",']


def test_whole_floats_are_written_short():
    assert (
        render({"a": 120.0, "b": 0.5, "c": 1e300}, [])
        == "a = 120\nb = 0.5\nc = 1e+300\n"
    )
