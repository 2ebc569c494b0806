# SPDX-License-Identifier: Apache-2.0
"""Wall-clock time of a call, as the median of repeated runs."""

import statistics
import time
from collections.abc import Callable


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


def _seconds(fn: Callable[[], object]) -> float:
    """Return the time of one call."""
    start = time.perf_counter()
    fn()
    return time.perf_counter() - start
