# SPDX-License-Identifier: Apache-2.0
"""A network's training in one file that is safe to load.

Parameters, the method's state, the streams of a seeded run, and which ledger stood at
how many charges are written by ``torch.save`` and read with ``weights_only=True``,
which builds tensors and plain values and runs nothing.  The file is replaced
atomically.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from armijo.errors import ArmijoError
from armijo.optim.checkpoint import (
    refuse_other_run,
    state_from_values,
    state_to_values,
)
from armijo.optim.loop import S, StepRecord

FORMAT = "armijo-training"
VERSION = 1


class Position(NamedTuple):
    """Where a training stands after a step: released values and its own streams.

    Attributes
    ----------
    state : State
        The method's.
    records : list of StepRecord
        One for each step.
    randomness : mapping
        Streams of a seeded run.
    charges : int
        How many the ledger held.
    ledger : str or None
        The name that the ledger gave itself when it was begun, if it is a file.
    evaluations : list of (int, float)
        Values of the hook.
    """

    state: Any
    records: list[StepRecord]
    randomness: Mapping[str, Any]
    charges: int = 0
    ledger: str | None = None
    evaluations: list[tuple[int, float]] = []  # noqa: RUF012 (never changed)


def save_training(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], position: Position
) -> None:
    """Write a checkpoint whole or not at all."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "run": dict(run),
        **position._asdict(),
        "state": state_to_values(position.state),
        "records": [asdict(record) for record in position.records],
    }
    target = Path(path)
    draft = target.with_name(target.name + ".new")
    with draft.open("wb") as file:
        torch.save(document, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)


def load_training(
    path: str | os.PathLike[str] | IO[bytes], *, run: Mapping[str, Any], like: S
) -> Position:
    """Read a checkpoint of the same run, whose states are ``like`` this one."""
    try:
        document = torch.load(path, map_location=like.w.device, weights_only=True)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError("another format")
        found = dict(document["run"])
    except Exception as error:  # damaged bytes make torch raise nearly anything
        raise _unreadable(path, error) from error
    refuse_other_run(str(path), found, run)
    try:
        return _position(document, like)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _unreadable(path, error) from error


def _position(document: Mapping[str, Any], like: S) -> Position:
    """Rebuild where the training stood, refusing vectors of another length."""
    state = state_from_values(document["state"], like)
    for name, value in document["state"].items():
        vector = value["direction"] if isinstance(value, dict) else value
        if isinstance(vector, Tensor) and vector.shape != like.w.shape:
            raise ValueError(f"{name} has the shape {tuple(vector.shape)}")
    return Position(
        state=state,
        records=[StepRecord(**record) for record in document["records"]],
        randomness=dict(document["randomness"]),
        charges=int(document["charges"]),
        ledger=document["ledger"],
        evaluations=[(int(at), float(value)) for at, value in document["evaluations"]],
    )


def _unreadable(path: object, error: Exception) -> ArmijoError:
    """Say that a file is no checkpoint, with the first line of why."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ArmijoError(
        f"{path} is not a checkpoint of such a training ({reason}); nothing was spent. "
        "Start anew, or name the file of this run."
    )
