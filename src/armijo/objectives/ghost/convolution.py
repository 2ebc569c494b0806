# SPDX-License-Identifier: Apache-2.0
"""Gradients of a convolution's weight, for each example.

A convolution multiplies its weight with the patches of the image, one for each of T
places, so it is a matrix with T terms.  Images are copied for each column of a kernel,
some examples at a time; the patches of its rows are parts of these copies.  With stride
1 the products of all pairs of patches are sums along diagonals of the products of all
pairs of pixels, which are as many times fewer as the kernel has entries; no patch is
formed at all.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.grad import conv2d_weight

from armijo.objectives.ghost.uses import (
    PASSED,
    SMALL_PRODUCTS,
    blocks,
    paired,
    stores,
    zeroed,
)

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

    @property
    def zeros(self) -> tuple[int, int, int, int]:
        """The border that is zero: all of it or, with another mode, none."""
        return self.padding if self.mode == "zeros" else (0, 0, 0, 0)

    @property
    def depth(self) -> int:
        """Numbers in a patch, in one group."""
        return self.shape[1] * self.kernel[0] * self.kernel[1]

    def framed(self, images: Tensor) -> Tensor:
        """Return the images with the border of a mode other than zeros."""
        return images if self.mode == "zeros" else self.padded(images)

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


class Convolution:
    """Gradients of a kernel from images (B, c, H, W) and (B, p, h, w) gradients."""

    def __init__(self, layout: Geometry, images: Tensor, gradients: Tensor) -> None:
        self.layout, self.images, self.gradients = layout, images, gradients
        self._stored: Tensor | None = None  # gradients by row of the kernel

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return len(self.images)

    def norms_squared(self) -> Tensor:
        """Return the squared norms, (B,)."""
        examples, height = self.images.shape[0], self.layout.shape[0]
        size = height * self.layout.depth
        terms = self.gradients[0, 0].numel()
        ghost = self._ghost_cost(terms, height)
        if stores(terms, size, examples, ghost):
            self._stored = self._by_row(slice(None))
            return _squared(self._stored)
        if SMALL_PRODUCTS * terms * size < ghost:
            parts = blocks(examples, size)
            return torch.cat([_squared(self._by_row(rows)) for rows in parts])
        pixels = max(terms, self.images[0, 0].numel()) if self._slides else terms
        parts = blocks(examples, 3 * pixels**2 * self.layout.groups)
        return torch.cat([self._ghost(rows) for rows in parts])

    @property
    def _slides(self) -> bool:
        """Whether the products of pixels can stand for those of patches."""
        return self.layout.stride == (1, 1)

    def _ghost_cost(self, terms: int, height: int) -> float:
        """Return the cost of the ghost norm of one example, all groups together."""
        groups, depth = self.layout.groups, self.layout.depth
        cost = terms**2 * height
        if not self._slides:
            return cost + groups * (terms**2 * (depth + PASSED) + terms * depth)
        pixels = self.images[0, 0].numel()
        passes = sum(self.layout.kernel) * PASSED
        return cost + pixels**2 * self.images.shape[1] + groups * terms**2 * passes

    def _ghost(self, rows: slice) -> Tensor:
        """Return ghost norms of some examples."""
        gradients, groups = self.gradients[rows], self.layout.groups
        left = gradients.reshape(len(gradients) * groups, -1, gradients[0, 0].numel())
        if self._slides:
            right = self._pairs_of_patches(self.images[rows])
        else:
            patches = self._patches(self.images[rows])
            right = patches.mT @ patches
        return paired(left.mT @ left, right).view(-1, groups).sum(1)

    def _pairs_of_patches(self, images: Tensor) -> Tensor:
        """Return the products of all pairs of patches with stride 1, (b G, T, T)."""
        images = self.layout.framed(images)
        height, width = images.shape[2:]
        pixels = images.reshape(
            images.shape[0] * self.layout.groups, -1, height * width
        )
        pairs = (pixels.mT @ pixels).view(-1, height, width, height, width)
        (kh, kw), (dh, dw) = self.layout.kernel, self.layout.dilation
        left, _, top, _ = self.layout.zeros
        places = self.gradients.shape[2:]
        pairs = _diagonal_sums(pairs, 1, kh, dh, top, places[0])
        pairs = _diagonal_sums(pairs, 2, kw, dw, left, places[1])
        return pairs.flatten(3).flatten(1, 2)

    def _patches(self, images: Tensor) -> Tensor:
        """Copy the patches of some examples, (b G, depth, T)."""
        images = self.layout.padded(images)
        (sh, sw), (dh, dw) = self.layout.stride, self.layout.dilation
        example, channel, row, column = images.stride()
        # A copy with places as the last axis runs along rows of pixels, several times
        # as fast as an unfolding that gathers.
        view = images.as_strided(
            (*images.shape[:2], *self.layout.kernel, *self.gradients.shape[2:]),
            (example, channel, dh * row, dw * column, sh * row, sw * column),
        )
        return view.reshape(len(images) * self.layout.groups, self.layout.depth, -1)

    def weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Write the sum of the examples' gradients times their weights."""
        layout = self.layout
        if self._stored is not None:
            rows = self._stored
            total = torch.matmul(weights, rows.flatten(2))
            out.copy_(self._upright(total.view(len(rows), 1, *rows.shape[2:]))[0])
            return
        left, right, top, bottom = layout.zeros
        native = left == right and top == bottom
        images = layout.framed(self.images) if native else layout.padded(self.images)
        total = conv2d_weight(  # type: ignore[no-untyped-call]
            images,
            (*layout.shape[:2], *layout.kernel),
            self.gradients * weights[:, None, None, None],
            stride=layout.stride,
            padding=(top, left) if native else (0, 0),
            dilation=layout.dilation,
            groups=layout.groups,
        )
        out.copy_(total.view(layout.shape))

    def per_example(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self._upright(self._by_row(rows))

    def _upright(self, turned: Tensor) -> Tensor:
        """Return gradients by row of the kernel in the shape of the weight."""
        kh, examples, groups, _, height = turned.shape
        split = turned.view(kh, examples, groups, -1, self.layout.kernel[1], height)
        weights = split.permute(1, 2, 5, 3, 0, 4)
        return weights.reshape(examples, *self.layout.shape)

    def _by_row(self, rows: slice) -> Tensor:
        """Return gradients for each row of the kernel, (kh, b, G, c kw, p) in a group.

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
        return result.view(kh, len(images), groups, width, height)

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

    def without(self, bad: Tensor) -> "Convolution":
        """Return the same with zeros in place of the bad examples."""
        images, gradients = zeroed(self.images, bad), zeroed(self.gradients, bad)
        return Convolution(self.layout, images, gradients)


def _squared(rows: Tensor) -> Tensor:
    """Return squared norms of gradients by row of the kernel."""
    return torch.linalg.vector_norm(rows.flatten(2), dim=2).square_().sum(0)


def _diagonal_sums(
    pairs: Tensor, axis: int, kernel: int, dilation: int, border: int, places: int
) -> Tensor:
    """Sum ``pairs[.., s + k, .., t + k, ..]`` over a kernel's offsets on one axis.

    The axes ``axis`` and ``axis + 2`` are those of s and t; a border of zeros adds
    nothing and is skipped.
    """
    length = pairs.shape[axis]
    shifts = [k * dilation - border for k in range(kernel)]
    whole = next((k for k in shifts if 0 <= k <= length - places), None)
    if whole is None:
        shape = list(pairs.shape)
        shape[axis] = shape[axis + 2] = places
        sums = pairs.new_zeros(shape)
    else:
        shifts.remove(whole)
        sums = pairs.narrow(axis, whole, places).narrow(axis + 2, whole, places)
        sums = sums.clone(memory_format=torch.contiguous_format)
    for shift in shifts:
        start = max(0, -shift)
        count = min(places, length - shift) - start
        if count > 0:
            into = sums.narrow(axis, start, count).narrow(axis + 2, start, count)
            start += shift
            into += pairs.narrow(axis, start, count).narrow(axis + 2, start, count)
    return sums
