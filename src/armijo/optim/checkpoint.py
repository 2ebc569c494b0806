# SPDX-License-Identifier: Apache-2.0
"""A run's state as JSON: safe to load, exact to the last bit.

A checkpoint holds released values only (and, for a seeded run, its generators).  It is
replaced atomically, so that there is always a whole one.  The ledger may be ahead of
it by the batches that were paid after it was written: those are not refunded, and a
resumed run pays for the batches it opens again.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from armijo import _validate
from armijo.errors import ArmijoError
from armijo.optim.loop import S, State, StepRecord
from armijo.search.armijo import Direction

FORMAT = "armijo-checkpoint"
VERSION = 2


def state_to_dict(state: State) -> dict[str, Any]:
    """Turn a state into JSON values; Python's floats survive the round trip."""
    return {
        field.name: _encoded(getattr(state, field.name))
        for field in fields(state)  # type: ignore[arg-type]
    }


def _encoded(value: Any) -> Any:
    """Turn one field into JSON values, tensors and directions with their names."""
    if isinstance(value, Tensor):
        return {"tensor": value.tolist()}
    if isinstance(value, Direction):
        return {"direction": value.vector.tolist(), "noise_energy": value.noise_energy}
    if isinstance(value, tuple):
        return [_encoded(item) for item in value]
    return value


def state_from_dict(values: Mapping[str, Any], like: S) -> S:
    """Rebuild a state of the same kind as ``like``, with as many parameters."""
    kept = {name: _decoded(value) for name, value in dict(values).items()}
    state: S = type(like)(**kept)
    for name, annotation in get_type_hints(type(like)).items():
        if not _fits(getattr(state, name), annotation):
            raise ValueError(f"{name} is {getattr(state, name)!r}")
    if not isinstance(state.w, Tensor) or state.w.shape != like.w.shape:
        raise ValueError(f"the parameters are not {like.w.numel()} numbers")
    return state


def _decoded(value: Any) -> Any:
    """Rebuild one field."""
    if isinstance(value, dict) and set(value) == {"tensor"}:
        return _vector(value["tensor"])
    if isinstance(value, dict) and set(value) == {"direction", "noise_energy"}:
        energy = float(value["noise_energy"])
        return Direction(vector=_vector(value["direction"]), noise_energy=energy)
    if isinstance(value, dict):
        raise ValueError(f"a field holds {sorted(value)}")
    if isinstance(value, list):
        return tuple(_decoded(item) for item in value)
    if isinstance(value, float):
        _validate.finite(value=value)
    return value


def _fits(value: Any, annotation: Any) -> bool:
    """Say whether a value has the declared type of its field."""
    if get_origin(annotation) is UnionType:
        return any(_fits(value, one) for one in get_args(annotation))
    if annotation is float:
        return isinstance(value, float | int)
    return isinstance(value, get_origin(annotation) or annotation)


def _vector(values: Any) -> Tensor:
    """Return a flat vector of finite numbers."""
    vector = torch.tensor(values, dtype=torch.float64)
    if vector.ndim != 1 or not bool(torch.isfinite(vector).all()):
        raise ValueError("a vector is not a list of finite numbers")
    return vector


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    run: Mapping[str, Any],
    state: State,
    records: list[StepRecord],
    randomness: Mapping[str, Any],
) -> None:
    """Write a checkpoint whole or not at all."""
    document = {
        "format": FORMAT,
        "version": VERSION,
        "run": dict(run),
        "state": state_to_dict(state),
        "records": [asdict(record) for record in records],
        "randomness": dict(randomness),
    }
    target = Path(path)
    draft = target.with_name(target.name + ".new")
    with draft.open("w", encoding="utf-8") as file:
        json.dump(document, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)


def load_checkpoint(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], like: S
) -> tuple[S, list[StepRecord], dict[str, Any]]:
    """Read a checkpoint of the same run, whose states are ``like`` this one."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise KeyError("format")
        found = dict(document["run"])
        state = state_from_dict(document["state"], like)
        records = [StepRecord(**record) for record in document["records"]]
        randomness = dict(document["randomness"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise ArmijoError(
            f"{path} is not a checkpoint of this version ({error}); nothing was spent. "
            "Start the run anew in another folder."
        ) from error
    for key in sorted({*found, *run}):
        if found.get(key) != run.get(key):
            raise ArmijoError(
                f"The checkpoint {path} belongs to another run: {key} is "
                f"{found.get(key)!r} there and {run.get(key)!r} here; nothing was "
                "spent. Resume with the same settings."
            )
    return state, records, randomness
