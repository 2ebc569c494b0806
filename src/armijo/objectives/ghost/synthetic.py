# SPDX-License-Identifier: Apache-2.0
"""Synthetic examples of the shapes that a module takes, for tries and probes."""

from typing import Any

import torch
from torch import Tensor, nn

from armijo.objectives.ghost.capture import UnsupportedForward


def synthetic_batch(module: nn.Module, like: Tensor, examples: int) -> Tensor:
    """Return random inputs; integers are places that every embedding has."""
    shape = (examples, *like.shape[1:])
    if like.is_floating_point():
        return torch.rand(shape, dtype=like.dtype, device=like.device)
    tables = [m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding)]
    most = min(tables, default=2)
    return torch.randint(most, shape, device=like.device).to(like.dtype)


def output_tensors(output: Any, examples: int) -> list[Tensor]:
    """Return the tensors in an output, one entry for each example in all of them."""
    if isinstance(output, Tensor):
        if output.shape[:1] != (examples,):
            raise UnsupportedForward(f"an output of shape {tuple(output.shape)}")
        return [output]
    parts = output.values() if isinstance(output, dict) else output
    return [part for value in parts for part in output_tensors(value, examples)]
