# SPDX-License-Identifier: Apache-2.0
"""A run's state as JSON: safe to load, exact to the last bit.

A checkpoint holds released values only (and, for a seeded run, its generators).  It is
replaced atomically, so that there is always a whole one.  The ledger may be ahead of
it by the batches that were paid after it was written; a resumed run opens those again
(:mod:`armijo.training.replay` says what they cost).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from armijo import _validate
from armijo.accounting.ledger_files import sync_folder, write
from armijo.errors import ArmijoError
from armijo.methods.base import Direction, S, State, StepRecord

FORMAT = "armijo-checkpoint"
VERSION = 3
UNREADABLE = (
    *(OSError, ValueError, LookupError, TypeError, AttributeError),
    *(ArithmeticError, RuntimeError),
)
"""What damaged values raise where they are used."""


class Checkpoint(NamedTuple):
    """Where a run stands after a step: released values and its own streams.

    Attributes
    ----------
    state : State
        The method's.
    records : list of StepRecord
        One for each step.
    randomness : mapping
        Streams of a seeded run.
    charges : int
        The index of the charge that the next step is to make.
    tag : str
        The run key's tag of all this; empty without a key.
    ledger : str or None
        The name that the ledger gave itself when it was begun, if it is a file.
    evaluations : list of (int, float)
        Values of a network's hook.
    """

    state: Any
    records: list[StepRecord]
    randomness: Mapping[str, Any]
    charges: int = 0
    tag: str = ""
    ledger: str | None = None
    evaluations: list[tuple[int, float]] = []  # noqa: RUF012 (never changed)


def state_to_dict(state: State) -> dict[str, Any]:
    """Turn a state into JSON values; Python's floats survive the round trip."""
    return {name: _listed(value) for name, value in state_to_values(state).items()}


def _listed(value: Any) -> Any:
    """Turn tensors into lists that say what they were."""
    if isinstance(value, Tensor):
        return {"tensor": value.tolist()}
    if isinstance(value, dict):
        return {"direction": value["direction"].tolist(), **_without_vector(value)}
    return [_listed(one) for one in value] if isinstance(value, tuple) else value


def _without_vector(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return a direction's other entries."""
    return {name: one for name, one in value.items() if name != "direction"}


def state_from_dict(values: Mapping[str, Any], like: S) -> S:
    """Rebuild a state from JSON values."""
    return state_from_values(
        {name: _unlisted(value) for name, value in dict(values).items()}, like
    )


def _unlisted(value: Any) -> Any:
    """Turn lists back into tensors and tuples."""
    if isinstance(value, dict) and set(value) == {"tensor"}:
        return _vector(value["tensor"])
    if isinstance(value, dict) and "direction" in value:
        return {**value, "direction": _vector(value["direction"])}
    return tuple(map(_unlisted, value)) if isinstance(value, list) else value


def state_to_values(state: State) -> dict[str, Any]:
    """Return the fields of a state as tensors and plain values, by name."""
    return {
        field.name: _plain(getattr(state, field.name))
        for field in fields(state)  # type: ignore[arg-type]
    }


def _plain(value: Any) -> Any:
    """Take a direction apart."""
    if isinstance(value, Direction):
        return {"direction": value.vector, "noise_sq_norm": value.noise_sq_norm}
    return value


def state_from_values(values: Mapping[str, Any], like: S) -> S:
    """Rebuild a state of the same kind as ``like``, with as many parameters."""
    kept = {name: _built(value) for name, value in dict(values).items()}
    state: S = type(like)(**kept)
    _refuse_unfit(state, get_type_hints(type(like)))
    if state.w.shape != like.w.shape or state.w.dtype != like.w.dtype:
        raise ValueError(f"the parameters are not {like.w.numel()} such numbers")
    return state


def _built(value: Any) -> Any:
    """Rebuild one field, refusing numbers that are none."""
    if isinstance(value, dict):
        if set(value) != {"direction", "noise_sq_norm"}:
            raise ValueError(f"a field holds {sorted(value)}")
        vector, energy = value["direction"], float(value["noise_sq_norm"])
        return Direction(vector=_built(vector), noise_sq_norm=energy)
    if isinstance(value, tuple):
        return tuple(map(_built, value))
    if isinstance(value, Tensor):
        _refuse_odd(value)
    if isinstance(value, float):
        _validate.finite(value=value)
    return value


def position_from(document: Mapping[str, Any], state: Any) -> Checkpoint:
    """Rebuild all but the state from plain values, refusing any other ones."""
    position = Checkpoint(
        state,
        [_record(values) for values in document["records"]],
        dict(document["randomness"]),
        document["charges"],
        document["tag"],
        document["ledger"],
    )
    _validate.at_least(0, charges=position.charges)
    _refuse_unfit(position, {"tag": str, "ledger": str | None})
    return position


def _record(values: Mapping[str, Any]) -> StepRecord:
    """Rebuild a record, whose fields must have their types."""
    record = StepRecord(**values)
    _refuse_unfit(record, get_type_hints(StepRecord))
    return record


def _refuse_unfit(owner: Any, types: Mapping[str, Any]) -> None:
    """Refuse fields that are not of their types."""
    for name, annotation in types.items():
        if not _fits(getattr(owner, name), annotation):
            raise ValueError(f"{name} is {getattr(owner, name)!r:.200}")


def _fits(value: Any, annotation: Any) -> bool:
    """Say whether a value has the declared type of its field."""
    if get_origin(annotation) is UnionType:
        return any(_fits(value, one) for one in get_args(annotation))
    if isinstance(value, bool):
        return annotation is bool
    if annotation is float:
        return isinstance(value, float | int)
    return isinstance(value, get_origin(annotation) or annotation)


def _refuse_odd(vector: Tensor) -> None:
    """Refuse numbers that are none, and a vector that claims more than it holds."""
    claimed = vector.numel() * vector.element_size()
    if claimed > vector.untyped_storage().nbytes():
        raise ValueError("a vector has more numbers than the file")
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("a vector is not a list of finite numbers")


def _vector(values: Any) -> Tensor:
    """Return a flat vector; that its numbers are finite is seen when it is built."""
    vector = torch.tensor(values, dtype=torch.float64)
    if vector.ndim != 1:
        raise ValueError("a vector is not a list of numbers")
    return vector


def save_checkpoint(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], position: Checkpoint
) -> None:
    """Write a checkpoint whole or not at all."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "run": dict(run),
        "state": state_to_dict(position.state),
        "records": [asdict(record) for record in position.records],
        "randomness": dict(position.randomness),
        "charges": position.charges,
        "tag": position.tag,
        "ledger": position.ledger,
    }
    replace_file(path, json.dumps(document, allow_nan=False).encode())


def replace_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Put a checkpoint in the place of the one before, which stays until then."""
    target = os.path.abspath(path)
    draft = target + ".new"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            write(fd, data)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, target)
        sync_folder(target)
    except OSError as error:
        raise ArmijoError(
            f"Cannot write the checkpoint {target}: {error.strerror or error}. The one "
            "before it is whole, and what was charged stays charged; make room there "
            "and resume."
        ) from error


def load_checkpoint(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], like: State
) -> Checkpoint:
    """Read a checkpoint of the same run, whose states are ``like`` this one."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise KeyError("format")
        json.dumps(document, allow_nan=False)  # no number is infinite, as when written
        found = dict(document["run"])
        position = position_from(document, state_from_dict(document["state"], like))
    except UNREADABLE as error:
        raise ArmijoError(
            f"{path} is not a checkpoint of this version ({error}); nothing was spent. "
            "Start the run anew in another folder."
        ) from error
    refuse_other_run(path, found, run)
    return position


def refuse_other_run(
    path: str | os.PathLike[str], found: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    """Refuse a checkpoint whose settings differ, and say in what."""
    for key in sorted({*found, *run}):
        if found.get(key) != run.get(key):
            raise ArmijoError(
                f"The checkpoint {path} belongs to another run: {key} is "
                f"{found.get(key)!r} there and {run.get(key)!r} here; nothing was "
                "spent. Resume with the same settings."
            )
