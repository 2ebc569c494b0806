# SPDX-License-Identifier: Apache-2.0
"""A run that a crash cannot change: key, ledger and checkpoint tied together.

A step is charged, made, settled, and only then seen; checkpoints say how many charges
their state has used.  After a crash the steps behind the checkpoint are redone with the
key of the run, without being charged again (docs/ledger.md has the proof).
"""

import os
from collections.abc import Mapping
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from armijo.accounting.ledger import Ledger, MemoryLedger
from armijo.accounting.run_key import (
    CheckpointRef,
    Digest,
    Fingerprint,
    RunKey,
    resume_key,
)
from armijo.data.identity import update_digest, update_with_machine
from armijo.data.sources import RowSource
from armijo.errors import LedgerError
from armijo.methods.base import State, StepRecord
from armijo.randomness import Randomness
from armijo.training.checkpoint import Checkpoint


def key_path(checkpoint: str | os.PathLike[str]) -> Path:
    """Return where the key of a run lies: beside its checkpoint."""
    path = Path(checkpoint)
    return path.with_name(path.name + ".key")


def ledger_path(
    ledger: str | os.PathLike[str] | None, checkpoint: str | os.PathLike[str] | None
) -> Path | None:
    """Return the file of the charges: beside the checkpoint, if no other is named.

    A checkpoint alone would forget what its steps cost: a run that was killed would
    be resumed with fresh noise on the whole budget.
    """
    if ledger is not None:
        return Path(ledger)
    if checkpoint is None:
        return None
    path = Path(checkpoint)
    return path.with_name(path.name + ".ledger")


def released(w: Tensor) -> dict[str, str]:
    """Return the digest of released parameters, for the closing line of a ledger.

    SHA-256 of their bytes in the type that they have, in order.
    """
    held = w.detach().cpu().contiguous().view(torch.uint8).numpy()
    return {"parameters": sha256(held.tobytes()).hexdigest()}


class ReplayableRun:
    """The key of a run, or none where steps cannot be redone bit for bit.

    Parameters
    ----------
    checkpoint : path or None
        The key lies beside it; without a checkpoint there is nothing to redo from.
    source : RowSource
        The rows; a key serves no others, so there is none where they cannot be told
        from others.
    settings : object
        All that the results depend on besides the rows, as plain values.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str] | None,
        source: RowSource,
        settings: object,
    ) -> None:
        self._source, self._settings = source, settings
        self._path = None if checkpoint is None else key_path(checkpoint)
        self._key: RunKey | None = None
        self._ledger: str | None = None

    def open_ledger(
        self,
        path: str | os.PathLike[str] | None,
        header: Mapping[str, object],
        past: Checkpoint | None,
    ) -> MemoryLedger:
        """Open a ledger and make it ready for the charges after a checkpoint."""
        ledger = MemoryLedger() if path is None else Ledger.open(path, header=header)
        try:
            if past is not None:
                _refuse_other_ledger(ledger, past)
            if isinstance(ledger, Ledger):
                self._ledger = str(ledger.header["run"])
                self._take_up(ledger, past)
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _take_up(self, ledger: Ledger, past: Checkpoint | None) -> None:
        """Go on with the key of the run, or draw one."""
        parts = self._source.parts()
        if self._path is None or parts is None:
            return
        facts: Fingerprint = {
            "the rows": partial(update_digest, value=parts),
            "the settings": partial(update_digest, value=self._settings),
            "libraries, threads or machine": update_with_machine,
        }
        before = None
        if past is not None:
            before = CheckpointRef(
                past.charges, past.tag, partial(_put_position, past=past)
            )
        self._key = resume_key(self._path, ledger, facts, before)

    @property
    def randomness(self) -> Randomness:
        """The streams of the key, or the system's where there is none."""
        return Randomness() if self._key is None else self._key.randomness

    def signed(self, position: Checkpoint) -> Checkpoint:
        """Return what a checkpoint holds, with the ledger's name and the key's tag."""
        position = position._replace(ledger=self._ledger)
        if self._key is None:
            return position
        content = partial(_put_position, past=position)
        return position._replace(tag=self._key.tag("checkpoint", content))

    def commit(self, state: State, record: StepRecord) -> None:
        """Put a step's result on record; to be called before anybody sees it."""
        if self._key is not None:
            result = partial(update_digest, value=(state, record))
            self._key.commit(record.batch, result)

    def end(self) -> None:
        """Destroy the key: all steps are made and in the checkpoint."""
        if self._key is not None:
            self._key.destroy()
            self._key = None


def _put_position(digest: Digest, past: Checkpoint) -> None:
    """Put in what the next steps depend on."""
    update_digest(digest, (past.charges, past.state, past.records))


def _refuse_other_ledger(ledger: MemoryLedger, past: Checkpoint) -> None:
    """Refuse another ledger than the checkpoint's, and an old copy of it."""
    name = ledger.header["run"] if isinstance(ledger, Ledger) else None
    if name is not None and past.ledger not in (None, name):
        raise LedgerError(
            f"The checkpoint belongs to the ledger {past.ledger}, found was {name}; "
            "bring back the ledger of this run. Nothing was spent."
        )
    if ledger.next_index < past.charges:
        raise LedgerError(
            f"The checkpoint was written after {past.charges} charges, but the ledger "
            f"holds {ledger.next_index}: it is an old copy. Bring back the ledger of "
            "this run; nothing was spent."
        )
