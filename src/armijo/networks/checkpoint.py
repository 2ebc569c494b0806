# SPDX-License-Identifier: Apache-2.0
"""A network's training in one file that is safe to load.

Parameters, the method's state, the streams of a seeded run, and which ledger stood at
how many charges are written by ``torch.save`` and read with ``weights_only=True``,
which builds tensors and plain values and runs nothing.  The file is replaced
atomically.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from io import BytesIO
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from armijo.errors import ArmijoError
from armijo.methods.base import S
from armijo.training.checkpoint import FORMAT as LINEAR_FORMAT
from armijo.training.checkpoint import (
    UNREADABLE,
    Checkpoint,
    position_from,
    refuse_other_run,
    replace_file,
    state_from_values,
    state_to_values,
)
from armijo.training.checkpoint import VERSION as LINEAR_VERSION

FORMAT = "armijo-training"
VERSION = 2


def save_training(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], position: Checkpoint
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
    written = BytesIO()
    torch.save(document, written)
    replace_file(path, written.getvalue())


def load_training(
    path: str | os.PathLike[str] | IO[bytes], *, run: Mapping[str, Any], like: S
) -> Checkpoint:
    """Read a checkpoint of the same run, whose states are ``like`` this one."""
    try:
        document = torch.load(path, map_location=like.w.device, weights_only=True)
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise ValueError("another format")
        found = dict(document["run"])
        _refuse_foreign({**document, "state": None})
    except Exception as error:  # damaged bytes make torch raise nearly anything
        raise _unreadable(path, error) from error
    refuse_other_run(str(path), found, run)
    try:
        return _position(document, like)
    except UNREADABLE as error:
        raise _unreadable(path, error) from error


class Released(NamedTuple):
    """What a checkpoint holds of a finished run, for its verification."""

    w: Tensor
    charges: int
    ledger: str | None


def read_released(path: str | os.PathLike[str]) -> Released:
    """Read parameters, number of charges and ledger of any checkpoint, and run nothing.

    Raises
    ------
    ArmijoError
        It is not a checkpoint of an estimator or a network of this version.
    """
    try:
        with open(path, "rb") as file:
            plain = file.read(1) == b"{"
        if plain:
            with open(path, encoding="utf-8") as text:
                document = json.load(text)
            known = LINEAR_FORMAT, LINEAR_VERSION
            w = torch.tensor(document["state"]["w"]["tensor"], dtype=torch.float64)
        else:
            document = torch.load(path, map_location="cpu", weights_only=True)
            known, w = (FORMAT, VERSION), document["state"]["w"]
        if (document["format"], document["version"]) != known:
            raise ValueError("another format")
        return Released(w, int(document["charges"]), document["ledger"])
    except Exception as error:  # damaged bytes make torch raise nearly anything
        raise _unreadable(path, error) from error


def _position(document: Mapping[str, Any], like: S) -> Checkpoint:
    """Rebuild where the training stood, refusing vectors of another length."""
    state = state_from_values(document["state"], like)
    for name, value in document["state"].items():
        vector = value["direction"] if isinstance(value, dict) else value
        if isinstance(vector, Tensor) and vector.shape != like.w.shape:
            raise ValueError(f"{name} has the shape {tuple(vector.shape)}")
    seen = [(int(at), float(value)) for at, value in document["evaluations"]]
    return position_from(document, state)._replace(evaluations=seen)


def _refuse_foreign(value: Any) -> None:
    """Refuse what JSON does not have where no vector is expected."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not isinstance(name, str):
                raise ValueError(f"a name is {name!r:.200}")
            _refuse_foreign(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _refuse_foreign(inner)
    elif not isinstance(value, str | int | float | None):
        raise ValueError(f"a value is of the type {type(value).__name__}")


def _unreadable(path: object, error: Exception) -> ArmijoError:
    """Say that a file is no checkpoint, with the first line of why."""
    reason = (str(error) or type(error).__name__).splitlines()[0]
    return ArmijoError(
        f"{path} is not a checkpoint of such a training ({reason}); nothing was spent. "
        "Start anew, or name the file of this run."
    )
