# SPDX-License-Identifier: Apache-2.0
"""A run that a crash cannot change: key, ledger and checkpoint tied together.

A step is charged, made, settled, and only then seen; checkpoints say how many charges
their state has used.  After a crash the steps behind the checkpoint are redone with the
key of the run, without being charged again (docs/ledger.md has the proof).
"""

import os
from functools import partial
from pathlib import Path

from armijo.accounting.ledger import Ledger
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


class ReplayableRun:
    """What ties ledger and checkpoint of a run together, with its key if it has one.

    Parameters
    ----------
    checkpoint : path
        The key lies beside it.
    source : RowSource
        The rows; a key serves no others, so there is none where they cannot be told
        from others.
    settings : object
        All that the results depend on besides the rows, as plain values.
    repeats : bool
        Whether steps can be redone bit for bit; else there is no key.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        source: RowSource,
        settings: object,
        *,
        repeats: bool,
    ) -> None:
        self._source, self._settings = source, settings
        self._path = key_path(checkpoint) if repeats else None
        self._key: RunKey | None = None
        self._ledger: str | None = None

    def take_up(self, ledger: Ledger, past: Checkpoint | None) -> None:
        """Make a ledger ready for the charges after a checkpoint, with key or without.

        The key of the run is read, or one is drawn.
        """
        self._ledger = str(ledger.header["run"])
        if past is not None:
            _refuse_other_ledger(ledger, past)
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


def _refuse_other_ledger(ledger: Ledger, past: Checkpoint) -> None:
    """Refuse another ledger than the checkpoint's, and an old copy of it."""
    name = ledger.header["run"]
    if past.ledger not in (None, name):
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
