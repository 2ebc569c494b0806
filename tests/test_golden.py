# SPDX-License-Identifier: Apache-2.0
"""Results of every method under a fixed seed are those of the golden file."""

import json

import pytest

from tests import golden


def test_every_method_releases_what_it_did():
    stored = json.loads(golden.PATH.read_text(encoding="utf-8"))
    if stored["machine"] != golden.fingerprint():
        pytest.skip(
            "the golden file was written on another machine; to check a change here, "
            "write it from the commit before with `python -m tests.golden`"
        )
    runs = dict(golden.entries())
    assert {
        name: runs[name] for name in runs if runs[name] != stored["runs"].get(name)
    } == {}
    assert set(runs) == set(stored["runs"])
