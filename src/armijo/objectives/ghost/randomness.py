# SPDX-License-Identifier: Apache-2.0
"""Dropout that repeats: a forward pass with the random numbers of a given seed."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

# Torch draws masks from one generator for all threads: without turns, trainings side by
# side would draw from each other's seeds.
_turn = threading.RLock()


@contextmanager
def repeated(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw what torch draws inside the block from ``seed``; None changes nothing.

    The state of the generators outside is put back, so a run goes on as if nothing had
    been drawn.  These numbers decide on masks only, never on noise for privacy.
    Threads take turns.

    Examples
    --------
    >>> with repeated(7, torch.device("cpu")):
    ...     first = torch.rand(3)
    >>> with repeated(7, torch.device("cpu")):
    ...     second = torch.rand(3)
    >>> bool((first == second).all())
    True
    """
    if seed is None:
        yield
        return
    devices = [device] if device.type == "cuda" else []
    with _turn, torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
