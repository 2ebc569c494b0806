# SPDX-License-Identifier: Apache-2.0
"""What one parameter's gradient is for each example, and its part of the integer sum.

A gradient answers two questions.  ``squared_norms`` are *estimates*, from which the
weight of an example is chosen.  ``add_integers`` rounds what the examples add to the
lattice, checks the norm of these very integers against the parameter's share of the
clip, and adds them exactly (:mod:`armijo.data.certified`).

A matrix that multiplies one vector has the gradient ``left right'`` (Goodfellow 2015).
Its integers are ``V U'`` for two rounded factors, so that all examples together are one
product of matrices; a bias is one more column of U.  With T terms the norm is estimated
by the ghost norm

    ||sum_t left_t right_t'||^2 = sum_{s,t} (left_s . left_t) (right_s . right_t)

(Li et al. 2022, section 4) where the gradients are too large to be kept, and all others
are formed.
"""

import math
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from armijo.data.certified import (
    PRODUCT_BITS,
    FormedSum,
    Share,
    exact_squares,
    keep_certified,
    squared_norms,
)
from armijo.objectives.ghost.int8 import LEFT_LIMIT, RIGHT_LIMIT, product

BLOCK = 1 << 18
"""Numbers of formed gradients that are rounded and added at a time: 2 MiB."""

LARGE_PRODUCT = 1 << 17
"""Numbers from which a product is worth int8 factors: a public shape decides."""

# Numbers of images copied at once: half of it costs a step of a small network 2 %.
_COPIED_NUMBERS = 1 << 20
_TINY = 1e-290
_LONGEST_FLOAT = 4096  # numbers whose squares float32 adds up well
_FAR = 1e15  # lengths whose squares are near the end of float32
_FORM_SUMS_UP_TO = 1 << 20  # numbers in a parameter
# Terms of an example's embedding gradient may be this many clips long together:
# multiples of the lattice then add up exactly, whatever cancels.
_MOST_MASS = 2.0**20


class PerExampleGrad(Protocol):
    """The gradient of one parameter, for each of B examples."""

    @property
    def examples(self) -> int:
        """The number B of examples."""
        ...

    @property
    def size(self) -> int:
        """Numbers in one example's gradient."""
        ...

    @property
    def kept_size(self) -> int:
        """Numbers that forming the gradient of one example would keep."""
        ...

    def squared_norms(self, keep: bool) -> Tensor:
        """Return estimates of the squared norms, (B,) in float64.

        ``keep`` lets gradients that are formed for it stay in memory.
        """
        ...

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Add what the examples may contribute to the integers of the parameter.

        To those of a weight and its bias, if the gradient is of both.
        """
        ...

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, the parameter's shape each."""
        ...


def blocks(examples: int, numbers: int, most: int | None = None) -> Iterator[slice]:
    """Yield slices of examples that need about ``most`` numbers, or ``BLOCK``, at once.

    >>> [part.stop - part.start for part in blocks(10, 2**16)]
    [4, 4, 2]
    """
    height = max(1, (most or BLOCK) // max(1, numbers))
    for start in range(0, examples, height):
        yield slice(start, min(start + height, examples))


def squared(vectors: Tensor) -> Tensor:
    """Return the squared norm of each example's numbers, in float64.

    In the precision of the numbers squares may vanish or overflow.
    """
    numbers = vectors.flatten(1).double()
    return torch.linalg.vecdot(numbers, numbers)


def lengths(vectors: Tensor) -> Tensor:
    """Return estimates of the norms of rows, (B,) in float64."""
    if vectors.shape[1] > _LONGEST_FLOAT or vectors.dtype != torch.float32:
        return squared(vectors).sqrt_()
    norms = torch.linalg.vector_norm(vectors, dim=1).double()
    # Squares that vanish make a short row shorter, which an estimate may be; those that
    # overflow would leave a row out.
    near = norms < _FAR
    if near.all():
        return norms
    # All rows again: what one of them gets must not depend on how many others are far.
    return norms.where(near, squared(vectors).sqrt_())


def _whole(vectors: Tensor, factors: Tensor, out: Tensor) -> Tensor:
    """Write rows times their factors as whole numbers; what is no number is zero."""
    torch.mul(vectors, factors[:, None], out=out[:, : vectors.shape[1]])
    out[:, vectors.shape[1] :] = factors[:, None]
    return out.round_().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def add_formed(
    examples: int,
    size: int,
    formed: Callable[[slice], Tensor],
    share: Share,
    out: Tensor,
) -> None:
    """Form, round, certify and add gradients, some examples at a time."""
    total: FormedSum | None = None
    for rows in blocks(examples, size):
        gradients = formed(rows).flatten(1)
        total = total or FormedSum(out.view(1, -1), gradients.dtype)
        total.add(gradients.unsqueeze(0), share.of(rows))
    if total is not None:
        total.close()


class Materialized:
    """Gradients that are there as they are: (B, *shape)."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.examples = len(self.gradients)
        self.size = math.prod(gradients.shape[1:])
        self.kept_size = 0

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, (B,)."""
        rows = blocks(self.examples, self.size)
        return torch.cat([squared(self.gradients[part]) for part in rows])

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Round, certify and add, some examples at a time."""
        flat = self.gradients.flatten(1)
        add_formed(self.examples, flat.shape[1], flat.__getitem__, share, out[0])

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self.gradients[rows]


class OuterProduct:
    """Gradients ``sum_t left_t right_t'`` of a matrix, from (B, T, p) and (B, T, d)."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.with_bias = False  # whether right_t has a one behind its last number
        self._norms: tuple[Tensor, Tensor] | None = None
        self._kept: Materialized | None = None
        self.examples = len(self.left)
        self.size = self.left.shape[2] * self.right.shape[2]
        self.kept_size = 0 if self.left.shape[1] == 1 else self.size

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, (B,)."""
        terms = self.left.shape[1]
        if terms == 1:
            left, right = lengths(self.left[:, 0]), lengths(self.right[:, 0])
            if self.with_bias:
                right = right.square_().add_(1.0).sqrt_()
            self._norms = left, right
            return (left * right).square_()
        if keep:
            self._kept = Materialized(self.formed(slice(None)))
            return self._kept.squared_norms(keep)
        parts = [self._ghost(rows) for rows in blocks(self.examples, 2 * terms**2)]
        return torch.cat(parts)

    def _ghost(self, rows: slice) -> Tensor:
        """Return ghost norms of some examples."""
        left, right = self.left[rows], self.right[rows]
        pairs = (left @ left.mT).flatten(1).double(), (right @ right.mT).flatten(1)
        return torch.linalg.vecdot(pairs[0], pairs[1].double()).clamp_(min=0)

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Round both factors of one term, or the formed gradients of several."""
        if self._kept is not None:
            return self._kept.add_integers(share, *out)
        if self._norms is not None:
            return self._add_product(*self._norms, share, *out)
        add_formed(self.examples, self.size, self.formed, share, out[0])

    def _add_product(
        self,
        left_norm: Tensor,
        right_norm: Tensor,
        share: Share,
        weight: Tensor,
        bias: Tensor | None = None,
    ) -> None:
        """Add ``V'U`` for integer factors V and U.

        ``||V_i U_i'|| = ||V_i|| ||U_i||``: both squares are exact, and the error of
        their product is far below what is taken off the share.
        """
        left, right = self.left[:, 0], self.right[:, 0]
        kind = torch.promote_types(left.dtype, torch.float32)
        large = weight.numel() >= LARGE_PRODUCT
        bits = min(PRODUCT_BITS, share.bits) if large else share.bits
        scale = share.scale * 2.0 ** (bits - share.bits)
        # Factors of equal length share the bits; V has at most 7 in a large product.
        turn = (scale * right_norm / left_norm).sqrt_()
        if large:
            turn = torch.minimum(turn, LEFT_LIMIT / left.abs().amax(1))
        V = _whole(left, turn.to(kind), torch.empty_like(left, dtype=kind))
        if large:
            V.clamp_(-LEFT_LIMIT, LEFT_LIMIT)
        squares = exact_squares(V, LEFT_LIMIT if large else math.inf)
        # What rounding did to the length of V is made up for by that of U.
        turn = scale * left_norm / squares.sqrt()
        width = right.shape[1] + (bias is not None)
        U = _whole(right, turn.to(kind), right.new_empty(len(right), width, dtype=kind))
        if large:
            U.clamp_(-RIGHT_LIMIT, RIGHT_LIMIT)
        grain = 2.0 ** (share.bits - bits)
        # By the length of V the most that U may have; a V of zeros allows anything.
        keep_certified(U, share.most / (squares.clamp_(min=1.0) * grain**2))
        total = product(V, U) if large else V.double().t() @ U.double()
        weight.add_(total[:, : right.shape[1]], alpha=grain)
        if bias is not None:
            bias.add_(total[:, -1], alpha=grain)

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, (b, p, d)."""
        return self.left[rows].mT @ self.right[rows]


class BiasGrad(Materialized):
    """Gradients of a bias, which may be one more column of those of its weight."""

    def __init__(self, weight: OuterProduct) -> None:
        left = weight.left
        super().__init__(left[:, 0] if left.shape[1] == 1 else left.sum(1))
        self.weight = weight


class ConvGrad:
    """Gradients of a kernel from images (B, c, [H,] W) and (B, p, [h,] w) gradients.

    A convolution multiplies its weight with the patches of the image, one for each of T
    places, so it is a matrix with T terms.  Images are copied for each column of a
    kernel, some examples at a time; the patches of its rows are parts of these copies.
    Gradients are formed by row of the kernel, (kh, B, G c kw p).  One dimension counts
    as a height of one.
    """

    def __init__(
        self, layer: nn.Conv1d | nn.Conv2d, images: Tensor, gradients: Tensor
    ) -> None:
        flat = images.dim() == 3
        one = (1,) if flat else ()
        self.images = images.unsqueeze(2) if flat else images
        self.gradients = gradients.unsqueeze(2) if flat else gradients
        self.shape, self.groups = tuple(layer.weight.shape), layer.groups
        self.kernel = (*one, *layer.kernel_size)
        self.stride, self.dilation = (*one, *layer.stride), (*one, *layer.dilation)
        self.border = (*layer._reversed_padding_repeated_twice, *(0, 0) * flat)
        self.mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        self._kept: list[Tensor] | None = None
        self.examples = len(images)
        self.size = self.kept_size = math.prod(self.shape)

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, (B,)."""
        kept, squares = [], []
        for rows in blocks(self.examples, self.size):
            formed = self._by_row(rows)
            squares.append(squared_norms(formed).sum(0))
            kept += [formed] * keep
        self._kept = kept if keep else None
        return torch.cat(squares)

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Add the kept gradients, or form them once more."""
        kh = self.kernel[0]
        total = out[0].new_zeros(kh, self.size // kh)
        integers = FormedSum(total, self.gradients.dtype)
        for number, rows in enumerate(blocks(self.examples, self.size)):
            formed = self._by_row(rows) if self._kept is None else self._kept[number]
            integers.add(formed, share.of(rows), overwrite=True)
        integers.close()
        out[0].add_(self._upright(total.view(kh, 1, -1))[0])

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return self._upright(self._by_row(rows))

    def _upright(self, turned: Tensor) -> Tensor:
        """Return gradients by row of the kernel in the shape of the weight."""
        (kh, kw), groups = self.kernel, self.groups
        examples, height = turned.shape[1], self.shape[0] // groups
        split = turned.view(kh, examples, groups, -1, kw, height)
        weights = split.permute(1, 2, 5, 3, 0, 4)
        return weights.reshape(examples, *self.shape)

    def _by_row(self, rows: slice) -> Tensor:
        """Return gradients for each row of the kernel, (kh, b, G c kw p).

        Images are copied once for each column of the kernel; with stride 1 the places
        of each of its rows lie one after another there.  Patches stand on the left:
        measured, the product is up to a third faster than its transpose where the
        kernel is small.
        """
        images, gradients = self.padded(rows), self.gradients[rows]
        groups, (kh, kw) = self.groups, self.kernel
        height, places = gradients.shape[1] // groups, gradients.shape[2:]
        width = images.shape[1] // groups * kw
        result = gradients.new_empty(kh, len(images) * groups, width, height)
        shape = (images.shape[1], kw, images.shape[2], places[1])
        buffer = None
        for part in blocks(len(images), math.prod(shape), _COPIED_NUMBERS):
            if buffer is None:  # new memory for every block would cost more than a copy
                buffer = images.new_empty(part.stop, *shape)
            columns = self._columns(images[part], buffer)
            left = gradients[part].reshape(-1, height, places.numel())
            for row, into in enumerate(result):
                patches = self._row(columns, row).reshape(-1, width, places.numel())
                into = into[part.start * groups : part.stop * groups]
                torch.bmm(patches, left.mT, out=into)
        return result.view(kh, len(images), -1)

    def padded(self, rows: slice) -> Tensor:
        """Return some images with their border."""
        images = self.images[rows]
        if not any(self.border):
            return images
        return functional.pad(images, self.border, mode=self.mode)

    def _columns(self, images: Tensor, buffer: Tensor) -> Tensor:
        """Copy padded images for each column of the kernel, (b, c, kw, H, w)."""
        example, channel, row, column = images.stride()
        steps = self.dilation[1] * column, row, self.stride[1] * column
        into = buffer[: len(images)]
        return into.copy_(images.as_strided(into.shape, (example, channel, *steps)))

    def _row(self, columns: Tensor, row: int) -> Tensor:
        """Return what one row of the kernel meets, (b, c, kw, h, w)."""
        stride, start = self.stride[0], row * self.dilation[0]
        end = start + stride * (self.gradients.shape[2] - 1) + 1
        return columns[:, :, :, start:end:stride]


class EmbeddingGrad:
    """Gradients of a table whose rows were looked up: (B, T) places, (B, T, d)."""

    def __init__(self, places: Tensor, gradients: Tensor, height: int) -> None:
        self.places, self.gradients, self.height = places, gradients, height
        self.examples = len(self.places)
        self.size = self.height * self.gradients.shape[2]
        self.kept_size = 0

    def _keys(self) -> tuple[Tensor, Tensor]:
        """Return which (example, place) there are, and which of them each term is."""
        row = torch.arange(self.examples, device=self.places.device)
        keys = (row[:, None] * self.height + self.places).flatten()
        return torch.unique(keys, return_inverse=True)

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, from products of all terms at equal places.

        Where an example's terms cancel all but one part in 2**20, its norm is raised
        to that part of what they are long together.
        """
        terms = self.places.shape[1]
        parts = blocks(self.examples, 2 * terms**2)
        norms = torch.cat([self._pairs(rows) for rows in parts])
        mass = torch.linalg.vector_norm(self.gradients.double(), dim=2).sum(1)
        return torch.maximum(norms, (mass / _MOST_MASS).square())

    def _pairs(self, rows: slice) -> Tensor:
        """Add up the products of pairs of terms; shapes do not depend on places."""
        places, gradients = self.places[rows], self.gradients[rows].double()
        equal = places[:, :, None] == places[:, None, :]
        pairs = (gradients @ gradients.mT).where(equal, 0.0)
        return pairs.sum((1, 2)).clamp_(min=0)

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Round every term, then add: equal places of an example, examples."""
        grain, width = share.grain, self.gradients.shape[2]
        terms = self.gradients.double() * (share.scale / grain)[:, None, None]
        terms = terms.round_().nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        # Lemma 1 needs sums of magnitudes below 2**53; longer ones are left out.
        heavy = ~(terms.abs().sum((1, 2)) < 2.0**52)
        terms.masked_fill_(heavy[:, None, None], 0.0)
        keys, inverse = self._keys()
        sums = terms.new_zeros(len(keys), width)
        sums.index_add_(0, inverse, terms.flatten(0, 1))
        owner = keys // self.height
        squares = torch.linalg.vecdot(sums, sums)  # whole numbers: exact if they pass
        total = sums.new_zeros(self.examples).index_add_(0, owner, squares)
        bad = ~(total <= share.most / grain**2)
        sums.masked_fill_(bad[owner][:, None], 0.0)
        out[0].index_add_(0, keys % self.height, sums, alpha=grain)

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples, (b, height, d)."""
        places, gradients = self.places[rows], self.gradients[rows]
        result = gradients.new_zeros(len(places), self.height, gradients.shape[2])
        return result.scatter_add_(1, places[..., None].expand_as(gradients), gradients)


class Sum:
    """Several uses of one parameter of different kinds, such as a tied embedding.

    Small gradients are formed and added.  Otherwise the norm of the sum is estimated,
    and bounded, by the sum of the norms: every use gets its part of the share.
    """

    def __init__(self, uses: list[PerExampleGrad]) -> None:
        self.uses = uses
        self._formed: Materialized | None = None
        self._norms: list[Tensor] = []

    @property
    def examples(self) -> int:
        """The number B of examples."""
        return self.uses[0].examples

    @property
    def size(self) -> int:
        """Numbers in one example's gradient."""
        return self.uses[0].size

    @property
    def kept_size(self) -> int:
        """The formed sum, or what the uses keep."""
        if self.size <= _FORM_SUMS_UP_TO:
            return self.size
        return sum(use.kept_size for use in self.uses)

    def squared_norms(self, keep: bool) -> Tensor:
        """Return the squared norms, (B,)."""
        if keep and self.size <= _FORM_SUMS_UP_TO:
            self._formed = Materialized(self.formed(slice(None)))
            return self._formed.squared_norms(keep)
        self._norms = [use.squared_norms(keep).sqrt() for use in self.uses]
        return torch.stack(self._norms).sum(0).square()

    def add_integers(self, share: Share, *out: Tensor) -> None:
        """Add the formed sum, or each use within its part of the share."""
        if self._formed is not None:
            return self._formed.add_integers(share, *out)
        together = torch.stack(self._norms).sum(0) + _TINY
        for use, norms in zip(self.uses, self._norms, strict=True):
            use.add_integers(share.part(norms / together * (1 - 2.0**-40)), *out)

    def formed(self, rows: slice) -> Tensor:
        """Return the gradients of some examples."""
        return reduce(torch.add, [use.formed(rows) for use in self.uses])


def merged(uses: list[PerExampleGrad]) -> PerExampleGrad:
    """Return all uses of one parameter as one: those of one kind have more terms."""
    if len(uses) == 1:
        return uses[0]
    if all(isinstance(use, Materialized) for use in uses):
        return Materialized(
            reduce(torch.add, [cast(Materialized, use).gradients for use in uses])
        )
    merged_kinds: list[PerExampleGrad] = []
    outers = [use for use in uses if isinstance(use, OuterProduct)]
    lookups = [use for use in uses if isinstance(use, EmbeddingGrad)]
    if outers:
        sides = [
            torch.cat([getattr(u, s) for u in outers], 1) for s in ("left", "right")
        ]
        merged_kinds.append(OuterProduct(*sides))
    if lookups:
        places = torch.cat([use.places for use in lookups], dim=1)
        gradients = torch.cat([use.gradients for use in lookups], dim=1)
        merged_kinds.append(EmbeddingGrad(places, gradients, lookups[0].height))
    merged_kinds += [u for u in uses if u not in outers and u not in lookups]
    return merged_kinds[0] if len(merged_kinds) == 1 else Sum(merged_kinds)


Gradients = dict[tuple[nn.Parameter, ...], PerExampleGrad]
"""Of the parameters that are named; of all of them together without a name."""


def joined(gradients: Gradients) -> Gradients:
    """Return gradients with the bias of a matrix as one more column of it."""
    owners = {id(gradient): names for names, gradient in gradients.items()}
    result = dict(gradients)
    for names, gradient in gradients.items():
        weight = getattr(gradient, "weight", None)
        if isinstance(weight, OuterProduct) and weight.left.shape[1] == 1:
            if id(weight) in owners:
                weight.with_bias = True
                result.pop(names)
                result[owners[id(weight)] + names] = result.pop(owners[id(weight)])
    return result
