# SPDX-License-Identifier: Apache-2.0
"""A run goes on, or not, with a file that was damaged: never with a traceback."""

import pytest

from tests.fuzz.cli_targets import resume_target
from tests.fuzz.target import fuzzed

pytestmark = pytest.mark.usefixtures("quick")
FILES = ("checkpoint.safetensors", "checkpoint.safetensors.key", "ledger.jsonl")


@pytest.mark.parametrize("name", FILES)
def test_the_undamaged_file_is_gone_on_with(tmp_path, name):
    target = resume_target(name)
    assert target.survive(tmp_path, target.seeds[0])


@pytest.mark.parametrize("name", FILES)
def test_a_few_damaged_files(tmp_path, name):
    target = resume_target(name)
    assert fuzzed(target, tmp_path, target.few) >= target.few


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_many_damaged_files(tmp_path, name):
    target = resume_target(name)
    assert fuzzed(target, tmp_path, target.many) >= target.many
