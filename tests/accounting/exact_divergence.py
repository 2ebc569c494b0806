# SPDX-License-Identifier: Apache-2.0
"""The exact output law of AboveThreshold, integrated over its threshold noise.

The oracle of the privacy tests. It knows nothing of the package under test: a run
compares ``query_i + noise_i >= threshold noise`` for one query after the other and
releases the index of the first query that passes, or "none found". Given the
threshold noise the comparisons are independent, so each probability is a
one-dimensional integral, taken by composite Gauss-Legendre quadrature in log space.
Distances are in units of the sensitivity of a query.
"""

import dataclasses
from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

FloatArray = NDArray[np.float64]

_LOG_2 = float(np.log(2.0))
_LOG_SQRT_TWO_PI = 0.5 * float(np.log(2.0 * np.pi))
_BLOCK_ENTRIES = 1 << 18


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noises:
    """Family and scales (Laplace b, Gaussian sigma) of the two noises of one run."""

    kind: Literal["laplace", "gaussian"]
    threshold_scale: float
    query_scale: float

    def log_density(self, offsets: FloatArray, scale: float) -> FloatArray:
        """Log density of a noise of this family at ``offsets``."""
        units = offsets / scale
        if self.kind == "laplace":
            return -np.abs(units) - np.log(2.0 * scale)
        return -0.5 * units * units - np.log(scale) - _LOG_SQRT_TWO_PI

    def log_below(self, offsets: FloatArray) -> FloatArray:
        """Log probability that the noise of a query is below ``offsets``."""
        units = offsets / self.query_scale
        if self.kind == "gaussian":
            return special.log_ndtr(units)
        small = np.log1p(-0.5 * np.exp(-np.abs(units)))
        return np.where(units < 0, units - _LOG_2, small)

    def log_above(self, offsets: FloatArray) -> FloatArray:
        """Log probability that the noise of a query is above ``offsets``."""
        return self.log_below(-offsets)


class Nodes(NamedTuple):
    """Values of the threshold noise and the log of their quadrature weights."""

    points: FloatArray
    log_weights: FloatArray


def _panel_edges(
    noises: Noises, levels: FloatArray, count: int, fineness: float
) -> FloatArray:
    """Panel edges covering every threshold that any outcome makes likely.

    Given any outcome the threshold stays near zero, near the queries, or a few
    query scales beyond them (a long run of failures pushes it up by the expected
    maximum of ``count`` noises), and falls off at least as fast as its own law.
    """
    a, b = noises.threshold_scale, noises.query_scale
    low, high = min(0.0, float(levels.min())), max(0.0, float(levels.max()))
    if noises.kind == "laplace":
        below, above, tail = 6.0 * b, (6.0 + np.log(count)) * b, 45.0 * a
    else:
        margin = (4.0 + np.sqrt(2.0 * np.log(count))) * b
        below, above, tail = margin, margin, 11.0 * a
    step = 0.5 * min(a, b) / fineness
    core = np.arange(low - below, high + above + step, step)
    far = np.arange(0.0, tail, (a if noises.kind == "laplace" else 0.5 * a) / fineness)
    edges = np.concatenate([core[0] - far, core, core[-1] + far])
    if noises.kind == "laplace":
        # The Laplace density has a kink and its distribution function a jump in the
        # second derivative: a panel across either would spoil the convergence.
        edges = np.concatenate([edges, [0.0], levels])
    return np.unique(edges)


def threshold_nodes(
    noises: Noises, *sequences: ArrayLike, fineness: float = 1.0
) -> Nodes:
    """Return quadrature nodes for the laws of all ``sequences`` of queries."""
    if noises.threshold_scale == 0:
        return Nodes(np.zeros(1), np.zeros(1))
    arrays = [np.asarray(sequence, dtype=float) for sequence in sequences]
    levels = np.unique(np.concatenate(arrays))
    edges = _panel_edges(noises, levels, max(map(len, arrays)), fineness)
    abscissas, weights = np.polynomial.legendre.leggauss(10)
    half = 0.5 * np.diff(edges)[:, None]
    points = (edges[:-1, None] + half * (1.0 + abscissas)).ravel()
    density = noises.log_density(points, noises.threshold_scale)
    return Nodes(points, density + np.log(half * weights).ravel())


def _joint_blocks(
    noises: Noises, queries: FloatArray, nodes: Nodes
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Yield node blocks with their log joint masses, one row for each outcome."""
    levels, row_of_query = np.unique(queries, return_inverse=True)
    width = max(1, _BLOCK_ENTRIES // (len(queries) + 1))
    for start in range(0, len(nodes.points), width):
        points = nodes.points[start : start + width]
        offsets = points - levels[:, None]
        joint = np.empty((len(queries) + 1, len(points)))
        joint[0] = nodes.log_weights[start : start + width]
        joint[1:] = noises.log_below(offsets)[row_of_query]
        np.cumsum(joint, axis=0, out=joint)
        joint[:-1] += noises.log_above(offsets)[row_of_query]
        yield points, joint


def _log_sum_exp(values: FloatArray, axis: int) -> FloatArray:
    """Log of the sum of exponentials along one axis; all entries are finite."""
    top = values.max(axis=axis, keepdims=True)
    total = np.log(np.sum(np.exp(values - top), axis=axis, keepdims=True)) + top
    return np.squeeze(total, axis=axis)


def log_law(
    noises: Noises, queries: ArrayLike, nodes: Nodes | None = None
) -> FloatArray:
    """Return the log probabilities of stopping at each query and of "none found"."""
    values = np.asarray(queries, dtype=float)
    grid = threshold_nodes(noises, values) if nodes is None else nodes
    blocks = [
        _log_sum_exp(joint, 1) for _, joint in _joint_blocks(noises, values, grid)
    ]
    return _log_sum_exp(np.stack(blocks), 0)


def renyi(log_p: FloatArray, log_q: FloatArray, orders: ArrayLike) -> FloatArray:
    """Renyi divergences ``log(sum p^a q^(1-a)) / (a-1)`` of two discrete laws."""
    order = np.atleast_1d(np.asarray(orders, dtype=float))[:, None]
    return _log_sum_exp(order * log_p + (1.0 - order) * log_q, 1) / (order[:, 0] - 1.0)


def divergences(
    noises: Noises,
    queries: ArrayLike,
    neighbor: ArrayLike,
    orders: ArrayLike,
    fineness: float = 1.0,
) -> tuple[FloatArray, FloatArray]:
    """Return the divergences at all orders, forward and in reverse.

    Raises
    ------
    ArithmeticError
        If either law does not sum to one: the quadrature cannot be trusted.
    """
    nodes = threshold_nodes(noises, queries, neighbor, fineness=fineness)
    laws = [log_law(noises, sequence, nodes) for sequence in (queries, neighbor)]
    lost = max(abs(float(np.sum(np.exp(law))) - 1.0) for law in laws)
    if lost > 1e-10:
        raise ArithmeticError(f"The outcome probabilities miss one by {lost:.1e}.")
    return renyi(laws[0], laws[1], orders), renyi(laws[1], laws[0], orders)


def _pull_back(
    noises: Noises,
    queries: FloatArray,
    nodes: Nodes,
    log_probabilities: FloatArray,
    cotangent: FloatArray,
) -> FloatArray:
    """Gradient of ``sum cotangent * log_law`` in the queries.

    Raising a query lowers the chance to fail it by the ratio density/below, for every
    outcome after it, and raises the chance to pass it by density/above.
    """
    gradient = np.zeros(len(queries))
    for points, joint in _joint_blocks(noises, queries, nodes):
        shares = np.exp(joint - log_probabilities[:, None]) * cotangent[:, None]
        later = np.cumsum(shares[:0:-1], axis=0)[::-1]
        offsets = points - queries[:, None]
        density = noises.log_density(offsets, noises.query_scale)
        gradient += np.sum(
            shares[:-1] * np.exp(density - noises.log_above(offsets))
            - later * np.exp(density - noises.log_below(offsets)),
            axis=1,
        )
    return gradient


def divergence_gradient(
    noises: Noises,
    queries: FloatArray,
    neighbor: FloatArray,
    order: float,
    nodes: Nodes,
) -> tuple[float, FloatArray, FloatArray]:
    """Return the divergence of one order and its gradients in both sequences."""
    log_p = log_law(noises, queries, nodes)
    log_q = log_law(noises, neighbor, nodes)
    exponent = order * log_p + (1.0 - order) * log_q
    log_moment = float(_log_sum_exp(exponent, 0))
    tilted = np.exp(exponent - log_moment)
    along_queries = _pull_back(
        noises, queries, nodes, log_p, tilted * (order / (order - 1.0))
    )
    along_neighbor = _pull_back(noises, neighbor, nodes, log_q, -tilted)
    return log_moment / (order - 1.0), along_queries, along_neighbor


def drifting_signs(count: int) -> tuple[FloatArray, FloatArray]:
    """Return levels (in query scales) and shifts that are hard for Gaussian noise.

    All queries are rare enough that about one of them passes. Early queries mostly
    rise on the neighbor and late ones mostly fall, dithered by the golden ratio.
    """
    index = np.arange(count)
    rises = (index * 0.6180339887498949) % 1.0 < 1.0 - index / count
    level = -0.75 * np.sqrt(2.0 * np.log(count))
    levels = level + np.where(
        rises, 0.6 + 0.8 * index / count, -0.4 + 1.0 * index / count
    )
    return levels, np.where(rises, 1.0, -1.0)
