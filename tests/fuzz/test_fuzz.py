# SPDX-License-Identifier: Apache-2.0
"""Whatever a file or a command line holds: an answer or a refusal, and no spending.

Each input runs with an end to its time and its memory, and warnings are errors.
"""

import time
from pathlib import Path

import pytest

from tests.fuzz import target as target_module
from tests.fuzz.cli_targets import resume_target
from tests.fuzz.limits import ROOM, Clock, Hung, bounded_memory, ended_after
from tests.fuzz.target import PLANTED, Target, fuzzed
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.usefixtures("quick")
IN_ALL = 100_000
KNOWN = {
    "csv": (b'"', b'a"b,c"\n1,2', b"\r\r\r,\r", b",\n,\n"),
    "model": (b"[" * 100_000, b'{"format": "armijo-model", "format": "armijo-model"}'),
    "run key": (b"[" * 100_000,),
    "checkpoint": (b"[" * 100_000,),
    "report": (b"[" * 100_000, b"[]", b'{"history": 3}'),
}
"""Inputs that once were answered with a traceback, or are likely to be."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", TARGETS)
def test_the_seeds_are_accepted(folder, name):
    with bounded_memory():
        for seed in TARGETS[name].seeds:
            assert TARGETS[name].survive(folder, seed), seed


@pytest.mark.parametrize("name", TARGETS)
def test_a_few_inputs(folder, name):
    target = TARGETS[name]
    assert fuzzed(target, folder, target.few, KNOWN.get(name, ())) >= target.few


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_many_inputs(folder, name):
    many, _ = TARGETS[name].counts()
    assert fuzzed(TARGETS[name], folder, many, ()) >= many


@pytest.mark.parametrize("coverage", [True, False])
def test_the_slow_suite_makes_as_many_inputs_as_promised(coverage):
    """Also where inputs cannot be guided by coverage, and those tests are skipped."""
    made = [target.counts(coverage) for target in TARGETS.values()]
    assert sum(many + guided for many, guided in made) >= IN_ALL
    assert coverage or not any(guided for _, guided in made)


class TestTheHarness:
    """A test that cannot fail tells nothing: here is what it must notice."""

    def test_a_planted_defect_is_found(self, folder):
        with pytest.raises(IndexError):
            fuzzed(PLANTED, folder, 1000, ())

    def test_a_hang_is_ended(self, folder):
        with pytest.raises(Hung), ended_after(0.05):
            while True:
                pass

    def test_waiting_is_no_computing(self):
        with ended_after(0.05):
            time.sleep(0.2)

    def test_an_input_that_waits_is_ended(self, folder, monkeypatch):
        """It computes nothing: only the clock on the wall tells."""
        monkeypatch.setattr(target_module, "LONGEST", 0.05)
        blocked = Target(run=lambda *given: time.sleep(30), seeds=(b"",))
        start = time.monotonic()
        with pytest.raises(Hung):
            blocked.survive(folder, b"")
        assert time.monotonic() - start < 20

    def test_an_inner_limit_leaves_the_outer_one(self):
        with pytest.raises(Hung), ended_after(0.3, clock=Clock.WALL):
            with ended_after(30, KeyboardInterrupt, clock=Clock.WALL):
                pass
            time.sleep(30)

    def test_a_huge_allocation_is_refused(self):
        with bounded_memory(), pytest.raises(MemoryError):
            bytearray(2 * ROOM)


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
