# SPDX-License-Identifier: Apache-2.0
"""Buffers stay as they are: what a pass writes there would leave without noise.

Clipping and noise are on gradients only.  A layer that keeps a running mean or the
largest input in a buffer would hand it over with the trained module, and would use what
it kept of earlier batches, exactly, in later ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from armijo.errors import UnsupportedModule
from armijo.objectives.ghost.params import every_layer


class _Held(NamedTuple):
    """The buffers of one layer before a pass: the tensors and copies of them."""

    part: nn.Module  # the module that the layer is in
    layer: nn.Module
    buffers: dict[str, Tensor | None]
    copies: dict[str, Tensor | None]


@contextmanager
def kept(*parts: object) -> Iterator[None]:
    """Put the buffers of all modules among the parts back after the block.

    In silence: an error that depends on private examples would tell of them.
    """
    held = _noted(parts)
    try:
        yield
    finally:
        _put_back(held)


@contextmanager
def unwritten(*parts: object) -> Iterator[None]:
    """Refuse modules whose buffers change inside the block, and put them back.

    For made-up examples.  What else is raised inside gives way to the refusal.
    """
    held = _noted(parts)
    try:
        yield
    finally:
        names = _changed(held)
        _put_back(held)
        if names:
            raise UnsupportedModule(
                f"A pass over examples writes to the buffers {', '.join(names)}, where "
                "values of private examples would be kept without noise. Put these "
                "layers in eval mode or leave them out; fill a cache that depends on "
                "shapes only by one pass over public inputs beforehand."
            )


def _noted(parts: tuple[object, ...]) -> list[_Held]:
    """Copy all buffers; one that several layers share gets one copy."""
    copies: dict[int, Tensor] = {}

    def copy(buffer: Tensor | None) -> Tensor | None:
        if buffer is None:
            return None
        return copies.setdefault(id(buffer), buffer.detach().clone())

    return [
        _Held(
            part,
            layer,
            dict(layer._buffers),
            {key: copy(buffer) for key, buffer in layer._buffers.items()},
        )
        for part in parts
        if isinstance(part, nn.Module)
        for layer in every_layer(part)
    ]


def _changed(held: list[_Held]) -> list[str]:
    """Return the names of buffers that have another value than before, or are new."""
    return [
        _name(one, key)
        for one in held
        for key in {**one.buffers, **one.layer._buffers}
        if not _same(one.layer._buffers.get(key), one.copies.get(key))
    ]


def _name(held: _Held, key: str) -> str:
    """Return the name of a layer's buffer inside the whole module."""
    names = {id(layer): name for name, layer in held.part.named_modules()}
    prefix = names[id(held.layer)]
    return f"{prefix}.{key}" if prefix else key


def _put_back(held: list[_Held]) -> None:
    """Give every layer its tensors again, or the copy of one that was overwritten."""
    for one in held:
        for key in one.layer._buffers.keys() - one.buffers.keys():
            del one.layer._buffers[key]
        for key, buffer in one.buffers.items():
            copy = one.copies[key]
            one.layer._buffers[key] = buffer if _same(buffer, copy) else copy


def _same(buffer: Tensor | None, copy: Tensor | None) -> bool:
    """Compare values; what is no number equals itself."""
    if buffer is None or copy is None:
        return buffer is copy
    if _kind(buffer) != _kind(copy) or buffer.grad_fn is not None:
        return False
    return all(
        torch.equal(one, other)
        or bool(((one == other) | ((one != one) & (other != other))).all())
        for one, other in zip(_numbers(buffer), _numbers(copy), strict=True)
    )


def _kind(tensor: Tensor) -> tuple[object, ...]:
    """Return what tensors have in common that can be compared."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _numbers(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return what torch can compare: the parts of a sparse tensor, else itself."""
    if tensor.layout is torch.strided:
        return (tensor,)
    sparse = tensor.to_sparse()
    return sparse._indices(), sparse._values()
