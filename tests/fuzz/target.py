# SPDX-License-Identifier: Apache-2.0
"""What is fuzzed: a reader that takes bytes, and the valid bytes to begin with."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.fuzz.limits import LONGEST, PATIENCE, Clock, bounded_memory, ended_after
from tests.fuzz.mutations import anything, mutated

COVERAGE = importlib.util.find_spec("atheris") is not None
"""Whether inputs can be guided here; atheris has wheels for Linux on x86-64 only."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """A reader under test.

    Attributes
    ----------
    run : callable
        Takes a folder and the bytes to read; says whether they were accepted.  What
        it raises is a finding: refusals that a user is told about are caught in it.
    seeds : tuple of bytes
        Contents that are accepted.
    built : strategy or None
        Contents that have the right form and odd values in it.
    few, many, guided : int
        How many inputs the normal suite makes, the slow one, and the one that is
        guided by coverage, if it can be: else the slow one makes those, too.
    """

    run: Callable[[Path, bytes], bool]
    seeds: tuple[bytes, ...]
    built: st.SearchStrategy[bytes] | None = None
    few: int = 50
    many: int = 5000
    guided: int = 5000

    def counts(self, coverage: bool = COVERAGE) -> tuple[int, int]:
        """Return how many inputs are made in all: at random, and guided."""
        return (self.many, self.guided) if coverage else (self.many + self.guided, 0)

    def inputs(self) -> st.SearchStrategy[bytes]:
        """Return spoiled seeds, odd contents of the right form, and anything."""
        spoiled = mutated(self.seeds)
        likely = spoiled if self.built is None else self.built | spoiled
        return likely | anything()

    def survive(self, folder: Path, content: bytes) -> bool:
        """Run one input; anything but an answer or a refusal is raised."""
        with ended_after(PATIENCE), ended_after(LONGEST, clock=Clock.WALL):
            return self.run(folder, content)


def fuzzed(
    target: Target, folder: Path, count: int, known: tuple[bytes, ...] = ()
) -> int:
    """Run so many inputs, and return how many there were."""
    done = 0

    @settings(
        max_examples=count,
        # A shared machine may be slow; an input that hangs is ended by the target.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(content=target.inputs())
    def one(content: bytes) -> None:
        nonlocal done
        done += 1
        target.survive(folder, content)

    run: Callable[[], None] = one
    for content in known:
        run = example(content=content)(run)
    with bounded_memory():
        run()
    return done


def _fragile(folder: Path, content: bytes) -> bool:
    """Read two numbers as a careless program does."""
    numbers = content.split(b"/")
    try:
        return int(numbers[0]) >= int(numbers[1])
    except ValueError:
        return False


PLANTED = Target(run=_fragile, seeds=(b"6/3", b"12/4"))
"""A reader with a defect, by which fuzzing itself is tested."""
