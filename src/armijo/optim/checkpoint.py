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
from typing import Any

import torch
from torch import Tensor

from armijo import _validate
from armijo.errors import ArmijoError
from armijo.optim.descent import SearchState
from armijo.optim.loop import StepRecord
from armijo.search.armijo import Direction

FORMAT = "armijo-checkpoint"
VERSION = 1


def state_to_dict(state: SearchState) -> dict[str, Any]:
    """Turn a state into JSON values; Python's floats survive the round trip."""
    values: dict[str, Any] = {}
    for field in fields(state):
        value = getattr(state, field.name)
        if isinstance(value, Tensor):
            value = value.tolist()
        elif isinstance(value, Direction):
            value = {
                "vector": value.vector.tolist(),
                "noise_energy": value.noise_energy,
            }
        values[field.name] = value
    return values


def state_from_dict(values: Mapping[str, Any]) -> SearchState:
    """Rebuild a state."""
    kept = dict(values)
    kept["w"] = _vector(kept["w"])
    kept["recent_steps"] = tuple(kept["recent_steps"])
    if kept["previous"] is not None:
        kept["previous"] = _vector(kept["previous"])
    if kept["pending"] is not None:
        vector = _vector(kept["pending"]["vector"])
        energy = float(kept["pending"]["noise_energy"])
        kept["pending"] = Direction(vector=vector, noise_energy=energy)
    state = SearchState(**kept)
    _validate.positive(
        gradient_rho=state.gradient_rho,
        search_epsilon=state.search_epsilon,
        grad_clip=state.grad_clip,
        loss_clip=state.loss_clip,
        step_max=state.step_max,
    )
    return state


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
    state: SearchState,
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
    path: str | os.PathLike[str], *, run: Mapping[str, Any]
) -> tuple[SearchState, list[StepRecord], dict[str, Any]]:
    """Read a checkpoint of the same run; anything else is refused."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["version"] != VERSION:
            raise KeyError("format")
        found = dict(document["run"])
        state = state_from_dict(document["state"])
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
