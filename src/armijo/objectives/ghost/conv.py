# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution's weight, for each example.

A convolution multiplies its weight with the patches of the image, one for each of T
places, so it is a matrix with T terms.  Images are copied for each column of a kernel,
some examples at a time; the patches of its rows are parts of these copies.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from armijo.data.certified import FormedSum, Share, squared_norms
from armijo.objectives.ghost.grads import blocks

Pair = tuple[int, int]

# Numbers copied at once: measured, half of it costs a step of a small network 2 %.
_COPIED = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """How a kernel moves over an image; one dimension counts as a height of one."""

    shape: tuple[int, ...]
    kernel: Pair
    stride: Pair
    dilation: Pair
    groups: int
    padding: tuple[int, int, int, int]  # left, right, top, bottom
    mode: str

    def padded(self, images: Tensor) -> Tensor:
        """Return the images with their border."""
        if not any(self.padding):
            return images
        mode = "constant" if self.mode == "zeros" else self.mode
        return functional.pad(images, self.padding, mode=mode)


def geometry(layer: nn.Conv1d | nn.Conv2d) -> Geometry:
    """Read the geometry of a layer."""
    one = (1,) if layer.weight.dim() == 3 else ()
    none = (0,) if layer.weight.dim() == 3 else ()
    border = tuple(layer._reversed_padding_repeated_twice) + 2 * none
    return Geometry(
        shape=tuple(layer.weight.shape),
        kernel=_pair(one + tuple(layer.kernel_size)),
        stride=_pair(one + tuple(layer.stride)),
        dilation=_pair(one + tuple(layer.dilation)),
        groups=layer.groups,
        padding=(border[0], border[1], border[2], border[3]),
        mode=layer.padding_mode,
    )


def _pair(numbers: tuple[int, ...]) -> Pair:
    """Return two numbers as a pair."""
    return numbers[0], numbers[1]


class ConvGrad:
    """Gradients of a kernel from images (B, c, H, W) and (B, p, h, w) gradients.

    They are formed by row of the kernel, (kh, B, G c kw p).
    """

    def __init__(self, layout: Geometry, images: Tensor, gradients: Tensor) -> None:
        self.layout, self.images, self.gradients = layout, images, gradients
        self._kept: list[Tensor] | None = None
        self.examples = len(self.images)
        self.size = math.prod(self.layout.shape)
        self.kept_size = self.size

    def _blocks(self) -> list[slice]:
        """Return the examples to be formed together."""
        return list(blocks(self.examples, self.size))

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, (B,)."""
        kept, squares = [], []
        for rows in self._blocks():
            formed = self._by_row(rows)
            squares.append(squared_norms(formed).sum(0))
            kept += [formed] * keep
        self._kept = kept if keep else None
        return torch.cat(squares)

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Add the kept gradients, or form them once more."""
        kh = self.layout.kernel[0]
        total = out[0].new_zeros(kh, self.size // kh)
        integers = FormedSum(total, self.gradients.dtype)
        for number, rows in enumerate(self._blocks()):
            formed = self._by_row(rows) if self._kept is None else self._kept[number]
            integers.add(formed, share.of(rows), overwrite=True)
        integers.close()
        out[0].add_(self._upright(total.view(kh, 1, -1))[0])

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self._upright(self._by_row(rows))

    def _upright(self, turned: Tensor) -> Tensor:
        """Return gradients by row of the kernel in the shape of the weight."""
        (kh, kw), groups = self.layout.kernel, self.layout.groups
        examples, height = turned.shape[1], self.layout.shape[0] // groups
        split = turned.view(kh, examples, groups, -1, kw, height)
        weights = split.permute(1, 2, 5, 3, 0, 4)
        return weights.reshape(examples, *self.layout.shape)

    def _by_row(self, rows: slice) -> Tensor:
        """Return gradients for each row of the kernel, (kh, b, G c kw p).

        Images are copied once for each column of the kernel; with stride 1 the places
        of each of its rows lie one after another there.  Patches stand on the left:
        measured, the product is up to a third faster than its transpose where the
        kernel is small.
        """
        images, gradients = self.layout.padded(self.images[rows]), self.gradients[rows]
        groups, (kh, kw) = self.layout.groups, self.layout.kernel
        height, places = gradients.shape[1] // groups, gradients.shape[2:]
        width = images.shape[1] // groups * kw
        result = gradients.new_empty(kh, len(images) * groups, width, height)
        shape = (images.shape[1], kw, images.shape[2], places[1])
        buffer = None
        for part in blocks(len(images), math.prod(shape), _COPIED):
            if buffer is None:  # new memory for every block would cost more than a copy
                buffer = images.new_empty(part.stop, *shape)
            columns = self._columns(images[part], buffer)
            left = gradients[part].reshape(-1, height, places.numel())
            for row, into in enumerate(result):
                patches = self._row(columns, row).reshape(-1, width, places.numel())
                into = into[part.start * groups : part.stop * groups]
                torch.bmm(patches, left.mT, out=into)
        return result.view(kh, len(images), -1)

    def _columns(self, images: Tensor, buffer: Tensor) -> Tensor:
        """Copy padded images for each column of the kernel, (b, c, kw, H, w)."""
        example, channel, row, column = images.stride()
        steps = self.layout.dilation[1] * column, row, self.layout.stride[1] * column
        into = buffer[: len(images)]
        return into.copy_(images.as_strided(into.shape, (example, channel, *steps)))

    def _row(self, columns: Tensor, row: int) -> Tensor:
        """Return what one row of the kernel meets, (b, c, kw, h, w)."""
        stride, start = self.layout.stride[0], row * self.layout.dilation[0]
        end = start + stride * (self.gradients.shape[2] - 1) + 1
        return columns[:, :, :, start:end:stride]
