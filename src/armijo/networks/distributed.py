# SPDX-License-Identifier: Apache-2.0
"""Several processes train as one: the same start, the same past, the same charges.

All ranks hold the same parameters and records and differ in rows and streams of bits
only.  The lead's copy counts: its module, its checkpoint and its ledger are handed to
the others before the first step, and whatever would let them drift apart is refused.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from armijo.accounting.accountants import Accountant
from armijo.accounting.budget import Budget
from armijo.accounting.ledger import Charge, MemoryLedger
from armijo.data.process_group import ProcessGroup, SingleProcess
from armijo.methods.base import S
from armijo.randomness import Randomness
from armijo.training.checkpoint import Checkpoint, from_bytes, load_checkpoint


def broadcast_init(
    group: ProcessGroup,
    module: nn.Module,
    settings: Any,
    budget: Budget,
    *,
    resume: bool,
) -> None:
    """Give everybody the lead's parameters and buffers, frozen ones included.

    Settings that differ between processes are refused by name; paths may differ.
    """
    if isinstance(group, SingleProcess):
        return
    common = {**vars(settings), "budget": budget, "resume": resume}
    for name, value in common.items():
        path = name in ("ledger", "checkpoint")
        group.assert_same(name, repr(value is not None if path else value))
    held = [*module.named_parameters(), *module.named_buffers()]
    shapes = [(name, tuple(one.shape), str(one.dtype)) for name, one in held]
    group.assert_same("module", repr(shapes))
    with torch.no_grad():
        for _, one in held:
            one.copy_(group.broadcast(one.detach, one))


def rank_rng(group: ProcessGroup, seed: int | None) -> Randomness:
    """Return the system's generator, or a seeded one that differs between processes.

    The lead's is that of a run in one process with the same seed.
    """
    if seed is None:
        return Randomness()
    return Randomness(seed=seed, rank=group.rank, insecure_deterministic=True)


def share_ledger(group: ProcessGroup, accountant: Accountant) -> None:
    """Let the others go on from the charges of the lead's ledger, without a file."""
    if isinstance(group, SingleProcess):
        return
    sent = group.bytes_from_lead(lambda: _written(accountant))
    if not group.is_main:
        accountant.attach(_copied(sent))


def _written(accountant: Accountant) -> bytes:
    """Write the charges so far as JSON."""
    charges = accountant.ledger.charges
    return json.dumps(
        [[one.label, dict(one.mechanism), list(one.cost)] for one in charges]
    ).encode()


def _copied(sent: bytes) -> MemoryLedger:
    """Return a ledger in memory with the charges of the lead."""
    ledger = MemoryLedger()
    for label, mechanism, cost in json.loads(sent):
        ledger.append(Charge(ledger.next_index, label, mechanism, tuple(cost)))
    return ledger


def load_on_all_ranks(
    group: ProcessGroup, path: Path, *, run: Mapping[str, Any], like: S
) -> Checkpoint:
    """Resume everybody from the lead's checkpoint."""
    if isinstance(group, SingleProcess):
        return load_checkpoint(path, run=run, like=like)
    own = group.all_or_none(
        lambda: load_checkpoint(path, run=run, like=like) if group.is_main else None
    )
    sent = group.bytes_from_lead(path.read_bytes)
    return own or from_bytes(sent, path=path, run=run, like=like)
