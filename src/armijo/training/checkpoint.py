# SPDX-License-Identifier: Apache-2.0
"""Where a run stands, in one file: safe to read, exact to the last bit.

A safetensors file holds the vectors of the method's state, and one more "vector", the
bytes of a JSON document, everything else (the header of such a file would do, but is
limited to 100 MB, which the records of a long run may reach).  Reading it builds
tensors and plain values and runs nothing.  All of it was released, and the file is
replaced atomically, so that there is always a whole one.  The ledger may be ahead of it
by the batches that were paid after it was written; a resumed run opens those again
(:mod:`armijo.training.replay` says what they cost).
"""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from armijo import _validate
from armijo._files import replace_file
from armijo.errors import ArmijoError
from armijo.methods.base import Direction, S, State, StepRecord, leaves

FORMAT = "armijo-checkpoint"
VERSION = 4
_DOCUMENT = "document"
_LENGTHS = 4096  # the document is padded to a multiple
_OLD = {b"{": "a linear model", b"PK": "a network"}  # how files of 0.1 begin


class Checkpoint(NamedTuple):
    """Where a run stands after a step: released values only.

    Attributes
    ----------
    state : State
        The method's.
    records : list of StepRecord
        One for each step.
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
    charges: int = 0
    tag: str = ""
    ledger: str | None = None
    evaluations: list[tuple[int, float]] = []  # noqa: RUF012 (never changed)


class Released(NamedTuple):
    """What a checkpoint holds of a finished run, for its verification."""

    w: Tensor
    charges: int
    ledger: str | None


def to_bytes(checkpoint: Checkpoint, run: Mapping[str, Any]) -> bytes:
    """Return a checkpoint as the bytes of its file.

    Raises
    ------
    ValueError
        A number is not finite: nobody could go on from there.
    """
    vectors: dict[str, Tensor] = {}
    document = {
        "format": FORMAT,
        "version": VERSION,
        "run": dict(run),
        **checkpoint._asdict(),
        "state": {
            name: _packed(value, name, vectors)
            for name, value in state_values(checkpoint.state).items()
        },
        "records": [_plain(record) for record in checkpoint.records],
        # As text, since a hook may return what is no number.
        "evaluations": [(step, repr(value)) for step, value in checkpoint.evaluations],
    }
    text = json.dumps(document, allow_nan=False).encode()
    # Few lengths: ctypes, by which tensors become bytes, keeps a type for each it met.
    text += b" " * (-len(text) % _LENGTHS)
    vectors[_DOCUMENT] = torch.from_numpy(np.frombuffer(text, np.uint8).copy())
    return safetensors.torch.save(vectors)


def state_values(state: State) -> dict[str, Any]:
    """Return the fields of a state by name."""
    names = [field.name for field in fields(state)]  # type: ignore[arg-type]
    return {name: getattr(state, name) for name in names}


def _packed(value: Any, name: str, vectors: dict[str, Tensor]) -> Any:
    """Return a field as JSON; its vectors are put beside and named there."""
    if isinstance(value, Tensor):
        _refuse_not_finite(value)
        vectors[name] = (
            value.detach().cpu().clone(memory_format=torch.contiguous_format)
        )
        return {"vector": name}
    if isinstance(value, Direction):
        inner = _packed(value.vector, name, vectors)
        return {"direction": inner, "noise_sq_norm": value.noise_sq_norm}
    if isinstance(value, tuple):
        return [_packed(v, f"{name}.{k}", vectors) for k, v in enumerate(value)]
    return value


def from_bytes(
    data: bytes, *, path: object, run: Mapping[str, Any], like: S
) -> Checkpoint:
    """Read a checkpoint of the same run, whose states are ``like`` this one.

    Raises
    ------
    ArmijoError
        These are not the bytes of such a checkpoint; nothing was spent.
    """
    document, vectors = _opened(data, path)
    vectors = {name: vector.to(like.w.device) for name, vector in vectors.items()}
    _refuse_other_run(path, document["run"], run)
    try:
        values = dict(document["state"])
        state: S = type(like)(**{k: _unpacked(v, vectors) for k, v in values.items()})
        _refuse_unfit(state, get_type_hints(type(like)))
        _refuse_other_shapes(state, like)
        checkpoint = Checkpoint(
            state,
            [_record(values) for values in document["records"]],
            document["charges"],
            document["tag"],
            document["ledger"],
            [(int(step), float(value)) for step, value in document["evaluations"]],
        )
        _validate.at_least(0, charges=checkpoint.charges)
        _refuse_unfit(checkpoint, {"tag": str, "ledger": str | None})
    except Exception as error:  # damaged values raise nearly anything
        raise _unreadable(path, error) from error
    return checkpoint


def read_released(path: str | os.PathLike[str]) -> Released:
    """Read parameters, number of charges and ledger of any checkpoint.

    Raises
    ------
    ArmijoError
        It is not a checkpoint of this version.
    """
    document, vectors = _opened(read_checkpoint(path), path)
    try:
        w = _unpacked(document["state"]["w"], vectors)
        return Released(w, int(document["charges"]), document["ledger"])
    except Exception as error:
        raise _unreadable(path, error) from error


def _opened(data: bytes, path: object) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return document and vectors of a file of this version."""
    try:
        for start, kind in _OLD.items():
            if data.startswith(start):
                raise ValueError(f"it may be one of {kind} by armijo 0.1")
        # Copies: memory of torch's own, whose alignment sums may depend on.
        vectors = {k: v.clone() for k, v in safetensors.torch.load(data).items()}
        document = json.loads(vectors.pop(_DOCUMENT).numpy().tobytes())
        if (document["format"], document["version"]) != (FORMAT, VERSION):
            raise ValueError(f"it has the version {document['version']!r:.50}")
        json.dumps(document, allow_nan=False)  # as when it was written
        document["run"] = dict(document["run"])
    except Exception as error:  # damaged bytes raise nearly anything
        raise _unreadable(path, error) from error
    return document, vectors


def _unpacked(value: Any, vectors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return tuple(_unpacked(item, vectors) for item in value)
    if not isinstance(value, dict):
        return value
    if set(value) == {"vector"}:
        vector = vectors[value["vector"]]
        _refuse_not_finite(vector)
        return vector
    if set(value) != {"direction", "noise_sq_norm"}:
        raise ValueError(f"a field holds {sorted(value)}")
    vector, energy = _unpacked(value["direction"], vectors), value["noise_sq_norm"]
    if not isinstance(vector, Tensor):
        raise ValueError("a direction has no vector")
    return Direction(vector=vector, noise_sq_norm=float(energy))


def _refuse_not_finite(vector: Tensor) -> None:
    if not bool(torch.isfinite(vector).all()):
        raise ValueError("a vector is not JSON compliant: it has non-finite numbers")


def _refuse_other_shapes(state: State, like: State) -> None:
    """Refuse parameters of another model; other vectors are like them, or declared."""
    if state.w.shape != like.w.shape:
        raise ValueError(f"the parameters are not {like.w.numel()} numbers")
    free, wanted = getattr(like, "free_shapes", ()), (like.w.shape, like.w.dtype)
    for name, value in state_values(state).items():
        for leaf in () if name in free else leaves(value):
            if isinstance(leaf, Tensor) and (leaf.shape, leaf.dtype) != wanted:
                raise ValueError(f"{name} has the shape {tuple(leaf.shape)}")


def _plain(record: StepRecord) -> dict[str, Any]:
    """Return a record as JSON, which has no infinity: rho of a step without noise."""
    rho = "inf" if record.gradient_rho == math.inf else record.gradient_rho
    return {**asdict(record), "gradient_rho": rho}


def _record(values: Mapping[str, Any]) -> StepRecord:
    if values["gradient_rho"] == "inf":
        values = {**values, "gradient_rho": math.inf}
    record = StepRecord(**values)
    _refuse_unfit(record, get_type_hints(StepRecord))
    return record


def _refuse_unfit(owner: Any, types: Mapping[str, Any]) -> None:
    for name, annotation in types.items():
        if not _fits(getattr(owner, name), annotation):
            raise ValueError(f"{name} is {getattr(owner, name)!r:.200}")


def _fits(value: Any, annotation: Any) -> bool:
    if get_origin(annotation) is UnionType:
        return any(_fits(value, option) for option in get_args(annotation))
    if isinstance(value, bool):
        return annotation is bool
    if annotation is float:
        return isinstance(value, float | int)
    return isinstance(value, get_origin(annotation) or annotation)


def save_checkpoint(
    path: str | os.PathLike[str], *, run: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    """Write a checkpoint whole or not at all, in the place of the one before."""
    data = to_bytes(checkpoint, run)
    try:
        replace_file(path, data)
    except OSError as error:
        raise ArmijoError(
            f"Cannot write the checkpoint {os.fspath(path)}: "
            f"{error.strerror or error}. The one before it is whole, and what was "
            "charged stays charged; make room there and resume."
        ) from error


def read_checkpoint(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file that may be a checkpoint."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: object, error: Exception) -> ArmijoError:
    reason = (str(error) or type(error).__name__).splitlines()[0][:300]
    return ArmijoError(
        f"{path} is not a checkpoint of this version ({reason}); nothing was spent and "
        "nothing overwritten. Name the file of this run, go on with the version that "
        "wrote it, or start anew in another folder."
    )


def _refuse_other_run(
    path: object, found: Mapping[str, Any], run: Mapping[str, Any]
) -> None:
    run = json.loads(json.dumps(dict(run)))  # tuples come back as lists
    for key in sorted({*found, *run}):
        if found.get(key) != run.get(key):
            raise ArmijoError(
                f"The checkpoint {path} belongs to another run: {key} is "
                f"{found.get(key)!r} there and {run.get(key)!r} here; nothing was "
                "spent. Resume with the same settings."
            )
