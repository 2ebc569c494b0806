# SPDX-License-Identifier: Apache-2.0
"""Checkpoints taken apart and put together again, as only a test or an attack does."""

import json
from typing import Any

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from armijo.training.checkpoint import Checkpoint, from_bytes, read_checkpoint, to_bytes

DOCUMENT = "document"
Parts = tuple[dict[str, Any], dict[str, Tensor]]


def taken_apart(data: bytes) -> Parts:
    """Return the document and the vectors of a checkpoint."""
    vectors = safetensors.torch.load(data)
    return json.loads(vectors.pop(DOCUMENT).numpy().tobytes()), vectors


def put_together(document: Any, vectors: dict[str, Tensor]) -> bytes:
    """Return the bytes of a checkpoint with any document and any vectors."""
    text = np.frombuffer(json.dumps(document).encode(), np.uint8)
    return safetensors.torch.save({**vectors, DOCUMENT: torch.tensor(text)})


def survived(state: Any) -> Any:
    """Return a state after it was written and read."""
    data = to_bytes(Checkpoint(state, []), {})
    return from_bytes(data, path="memory", run={}, like=state).state


def content(state: Any) -> Parts:
    """Return what a checkpoint holds of a state, with its vectors as lists."""
    document, vectors = taken_apart(to_bytes(Checkpoint(state, []), {}))
    return document["state"], {name: v.tolist() for name, v in vectors.items()}


def load_checkpoint(path: Any, *, run: Any, like: Any) -> Checkpoint:
    """Read the checkpoint of a run from its file."""
    return from_bytes(read_checkpoint(path), path=path, run=run, like=like)
