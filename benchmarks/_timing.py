# SPDX-License-Identifier: Apache-2.0
"""Time of a call: medians of repeated runs, alone or in turns with others.

``BENCH_CPU_TIME=1`` measures processor time instead of wall-clock time, for machines
that are never quiet.
"""

import os
import statistics
import time
from collections.abc import Callable, Mapping

CPU_TIME = os.environ.get("BENCH_CPU_TIME") == "1"
clock = time.process_time if CPU_TIME else time.perf_counter


def median_seconds(
    fn: Callable[[], object], repeats: int = 7, warmup: int = 1
) -> float:
    """Return the median time of ``repeats`` calls after ``warmup`` unmeasured ones."""
    if repeats < 1 or warmup < 0:
        raise ValueError(
            f"Expected repeats >= 1 and warmup >= 0, got {repeats} and {warmup}; "
            "ask for at least one measured run."
        )
    for _ in range(warmup):
        fn()
    return statistics.median(_seconds(fn) for _ in range(repeats))


def in_turns(
    steps: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds_each: float,
    calls: int = 1,
) -> dict[str, float]:
    """Return the median seconds of each step; slow ones sit out the later rounds.

    A turn has ``calls`` calls: a training makes its steps one after the other and
    finds its own data in the caches, not a peer's.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            if sum(found[name]) < seconds_each:
                found[name].extend(_seconds(step) for _ in range(calls))
    return {name: statistics.median(times) for name, times in found.items()}


def _seconds(fn: Callable[[], object]) -> float:
    """Return the time of one call."""
    start = clock()
    fn()
    return clock() - start
