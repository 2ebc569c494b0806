# SPDX-License-Identifier: Apache-2.0
"""The cited bounds a second time, for verification: no code of the accountants.

Everything starts from the public description of a charge, as it stands in a ledger,
and is written from the theorems (docs/proofs.md) in the plainest way: suprema are taken
over dense grids, sums over all terms.  What the accountants compute cleverly is thereby
checked by something that cannot have the same mistakes.  Orders are integers.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

Array = NDArray[np.float64]
Described = Mapping[str, Any]

LARGEST_ORDER = 2**18
_SELECTION_ORDERS = np.unique(
    np.rint(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 97)]))
)


class NotKnown(ValueError):
    """A mechanism for which there is no second implementation."""


def renyi(described: Described, orders: Array) -> Array:
    """Bound the Renyi divergence of a described mechanism at integer orders.

    >>> described = {"mechanism": "Gaussian", "noise_scale": 2.0, "sensitivity": 1.0}
    >>> renyi(described, np.array([8.0])).tolist()
    [1.0]
    """
    name = described.get("mechanism")
    bound = _CURVES.get(str(name))
    if bound is None:
        raise NotKnown(f"{name}")
    a = np.asarray(orders, dtype=float)
    if np.any(a < 2) or np.any(a != np.rint(a)) or np.any(a > LARGEST_ORDER):
        raise ValueError(f"orders must be integers from 2 to {LARGEST_ORDER}")
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        return bound(described, a)


def _gaussian(described: Described, a: Array) -> Array:
    """Mironov (2017), Corollary 3."""
    ratio = np.float64(described["sensitivity"]) / np.float64(described["noise_scale"])
    return a * ratio**2 / 2


def _laplace_at(a: Array, epsilon: Any) -> Array:
    """Return the curve of Laplace noise whose sensitivity over scale is epsilon."""
    small = a * np.expm1((a - 1) * epsilon) + (a - 1) * np.expm1(-a * epsilon)
    large = np.logaddexp(
        np.log(a) + (a - 1) * epsilon, np.log(a - 1) - a * epsilon
    ) - np.log(2 * a - 1)
    exact = np.where((a - 1) * epsilon < 30, np.log1p(small / (2 * a - 1)), large)
    return np.asarray(exact / (a - 1))


def _pure(described: Described, a: Array) -> Array:
    """Randomized response, Steinke (2022)."""
    e = float(described["epsilon"])
    top = np.logaddexp((a - 0.5) * e, -(a - 0.5) * e)
    bound = (top - np.logaddexp(e / 2, -e / 2)) / (a - 1)
    return np.minimum(bound, e)


def _exponential(described: Described, a: Array) -> Array:
    """Bounded range: the worst of all two-point losses t and t - epsilon, on a grid."""
    e = float(described["epsilon"])
    t = np.linspace(0.0, e, 8001)[1:-1]
    norm = math.log(-math.expm1(-e))
    up = np.log(-np.expm1(t - e)) - t - norm
    down = np.log(-np.expm1(-t)) - norm
    worst = [np.max(np.logaddexp(up + k * t, down + k * (t - e))) for k in a]
    cap = a * e**2 / 8  # Cesar and Rogers (2021)
    return np.where(a * e < 1e-3, cap, np.minimum(np.array(worst) / (a - 1), cap))


def _composed(described: Described, a: Array) -> Array:
    """Mironov (2017), Proposition 1."""
    return np.sum([renyi(part, a) for part in described["mechanisms"]], axis=0)


def _repeated(described: Described, a: Array) -> Array:
    return int(described["count"]) * renyi(described["inner"], a)


def _subsampled(described: Described, a: Array) -> Array:
    """Theorem B of docs/proofs.md: the binomial sum over all terms."""
    q = float(described["sampling_prob"])
    if q == 1:
        return renyi(described["inner"], a)
    top = int(a.max())
    inner = _at_all_integers(described["inner"], top)
    return np.array([_amplified(int(k), q, inner) for k in a])


def _amplified(order: int, q: float, inner: Array) -> float:
    """Return one order of the amplified curve; ``inner[l]`` is the curve at l."""
    terms = np.arange(2, order + 1)
    exponent = (terms - 1) * inner[2 : order + 1]
    log_weight = binom.logpmf(terms, order, q)
    if exponent.max() < 30:
        growth = float(np.sum(np.exp(log_weight) * np.expm1(exponent)))
        amplified = math.log1p(growth)
    else:
        rest = binom.logcdf(1, order, q)
        amplified = float(logsumexp(np.append(log_weight + exponent, rest)))
    return min(amplified / (order - 1), float(inner[order]))


def _at_all_integers(described: Described, top: int) -> Array:
    """Return the curve at 0..top; costly ones by chords of the convex (l-1) eps(l)."""
    orders = np.arange(2.0, top + 1)
    curve = np.zeros(top + 1)
    parts = described.get("mechanisms")
    if parts:
        return np.sum([_at_all_integers(part, top) for part in parts], axis=0)
    if described.get("mechanism") in ("Gaussian", "PureDP"):
        curve[2:] = renyi(described, orders)
        return curve
    sparse = np.rint(np.geomspace(min(top, 40), top, 80))
    at = np.unique(np.concatenate([np.arange(2.0, min(top, 40) + 1), sparse]))
    curve[2:] = np.interp(orders, at, (at - 1) * renyi(described, at)) / (orders - 1)
    return curve


def _selected(described: Described, a: Array) -> Array:
    """Papernot and Steinke (2022), Theorem 2 with eta = 1: geometric numbers."""
    mean = float(described["mean"])
    rate = math.log(mean)  # gamma = 1 / mean
    hat = _SELECTION_ORDERS
    on_grid = renyi(described["inner"], hat)
    second = 2 * float(np.min((1 - 1 / hat) * on_grid + rate / hat))
    own = renyi(described["inner"], a) + math.log(mean) / (a - 1) + second
    larger = on_grid + math.log(mean) / (hat - 1) + second
    # A bound at a larger order holds at a smaller one.
    above = [np.min(larger[hat >= k], initial=np.inf) for k in a]
    return np.minimum(own, above)


def _objective(described: Described, a: Array) -> Array:
    """Redberg, Koskela and Wang (2023), the Renyi bound."""
    s = described["lipschitz"] / described["noise_scale"]
    folded = (math.log(2) + log_ndtr((a - 1) * s)) / (a - 1)
    return _jacobian(described) + a * s**2 / 2 + folded


def _jacobian(described: Described) -> float:
    return -math.log1p(-described["smoothness"] / described["strong_convexity"])


def _permuted(described: Described, a: Array) -> Array:
    """Chen, Lee and Kifer (2019): joint convexity over the secret batch."""
    ratios = np.array(described["sensitivities"]) / described["noise_scale"]
    each = (a * (a - 1) / 2)[:, None] * ratios**2
    return (logsumexp(each, axis=1) - math.log(len(ratios))) / (a - 1)


def _with_output_noise(described: Described, a: Array) -> Array:
    return renyi(described["first"], a) + renyi(described["second"], a)


def _unbounded(described: Described, a: Array) -> Array:
    """No curve is proved."""
    return np.full(a.shape, np.inf)


def _above_threshold(described: Described, a: Array) -> Array:
    """Theorem A of docs/proofs.md, and the pure bound of Dwork and Roth (2014)."""
    settings = tuple(
        described[name]
        for name in ("kind", "threshold_scale", "query_scale", "max_queries")
    )
    return _theorem_a(settings, tuple(a.tolist())).copy()


@lru_cache(maxsize=256)
def _theorem_a(settings: tuple[Any, ...], orders: tuple[float, ...]) -> Array:
    """Take the best shift of the threshold, on a grid that is refined twice."""
    kind, threshold, query, most = settings
    a, grid = np.array(orders), 64 if kind == "laplace" else 16
    if query <= 0:
        return np.full(a.shape, np.inf)

    def bound(j: Array) -> Array:
        t = j / grid
        if threshold == 0:
            own = np.where(t == 0, 0.0, np.inf)
        elif kind == "laplace":
            own = _laplace_at(a, t / threshold)
        else:
            own = a * (t / threshold) ** 2 / 2
        return own + _log_growth(kind, a, t, query, most) / (a - 1)

    best, at = np.full(a.shape, np.inf), np.zeros(a.shape)
    tries: list[Array] = [np.full(a.shape, float(j)) for j in range(0, grid + 1, 4)]
    for step in (2, 1, 0):
        for j in tries if threshold else tries[:1]:
            value = bound(j)
            at, best = np.where(value < best, j, at), np.minimum(best, value)
        tries = [np.clip(at - step, 0, grid), np.clip(at + step, 0, grid)]
    if kind == "laplace" and threshold > 0:
        pure = {"mechanism": "PureDP", "epsilon": 1 / threshold + 2 / query}
        best = np.minimum(best, renyi(pure, a))
    return best


def _log_growth(kind: str, a: Array, t: Array, query: float, most: Any) -> Array:
    """Return log V: the supremum over a grid of levels and both signs of the shift."""
    logs = [_comparison(kind, a, s / query) for s in (t - 1, t + 1)]
    top, bottom = (np.concatenate(pair, axis=1) for pair in zip(*logs, strict=True))
    log_v = np.full(a.shape, np.inf)
    if kind == "laplace":
        ratio = top - np.log(-np.expm1(bottom))
        bounded = np.all(bottom < 0, axis=1)
        log_v = np.where(bounded, np.maximum(np.max(ratio, axis=1), 0), np.inf)
    if most is not None and (kind == "gaussian" or most <= 12):
        capped = np.zeros(a.shape)
        for _ in range(int(most)):
            step = np.max(np.logaddexp(top, bottom + capped[:, None]), axis=1)
            capped = np.maximum(capped, step)
        log_v = np.minimum(log_v, capped)
    return log_v


def _comparison(kind: str, a: Array, d: Array) -> tuple[Array, Array]:
    """Return log T and log B of one comparison on a grid of levels, order by order."""
    if kind == "laplace":  # kinks at 0 and -d; beyond them down to 1e-7 of the mass
        low, high = np.minimum(0, -d)[:, None], np.maximum(0, -d)[:, None]
        out = -np.log(np.geomspace(1e-7, 1, 60))
        inner = low + (high - low) * np.linspace(0, 1, 129)
        x = np.concatenate([low - out, inner, high + out], axis=1)
        log_cdf = _laplace_cdf
    else:  # maxima are near 0 or near (a-1) d, of width about one
        near = np.linspace(-12, 12, 481) + 0 * a[:, None]
        x = np.concatenate([near, near + ((a - 1) * d)[:, None]], axis=1)
        log_cdf = log_ndtr
    a, d = a[:, None], d[:, None]
    top = a * log_cdf(-x) + (1 - a) * log_cdf(-x - d)
    bottom = a * log_cdf(x) + (1 - a) * log_cdf(x + d)
    same = d == 0  # no shift: T + B = 1, and T / (1 - B) = 1 without rounding
    return top, np.where(same, np.log1p(-np.exp(np.minimum(top, -1e-300))), bottom)


def _laplace_cdf(x: Array) -> Array:
    return np.where(x < 0, x - math.log(2), np.log1p(-np.exp(-np.abs(x)) / 2))


_CURVES: dict[str, Callable[[Described, Array], Array]] = {
    "AboveThreshold": _above_threshold,
    "ApproximateMinima": _unbounded,
    "ChaudhuriObjective": _pure,
    "Composed": _composed,
    "Gaussian": _gaussian,
    "KiferObjective": _unbounded,
    "ExponentialMechanism": _exponential,
    "NonPrivate": _unbounded,
    "ObjectivePerturbation": _objective,
    "OnlySelection": _exponential,
    "PermutedMixture": _permuted,
    "PureDP": _pure,
    "RepeatAndSelect": _selected,
    "Repeated": _repeated,
    "Subsampled": _subsampled,
    "WithOutputNoise": _with_output_noise,
}


def delta_of(described: Described, epsilon: float) -> float:
    """Return the proved delta of one described release at ``epsilon``.

    For those that have a profile of their own; a Renyi curve is not one.
    """
    name = described.get("mechanism")
    if name == "Subsampled" and described["sampling_prob"] == 1:
        return delta_of(described["inner"], epsilon)
    if name == "Gaussian":
        return _gaussian_delta(described["sensitivity"], described, epsilon)
    if name == "ObjectivePerturbation":
        return _objective_delta(described, epsilon)
    if name == "PermutedMixture":
        moves = described["sensitivities"]
        each = [_gaussian_delta(move, described, epsilon) for move in moves]
        return math.fsum(each) / len(each)
    if name in ("KiferObjective", "ApproximateMinima"):
        return float(described["delta"]) if epsilon >= described["epsilon"] else 1.0
    if name in ("ChaudhuriObjective", "OnlySelection", "PureDP"):
        proved = described["epsilon"]
        worst = (math.exp(proved) - math.exp(epsilon)) / (1 + math.exp(proved))
        return max(worst, 0.0)
    if name == "WithOutputNoise":
        own = float(described["second_epsilon"])
        if epsilon < own:
            return 1.0
        extra = delta_of(described["second"], own)
        return min(delta_of(described["first"], epsilon - own) + extra, 1.0)
    raise NotKnown(f"{name}")


def _gaussian_delta(sensitivity: float, described: Described, epsilon: float) -> float:
    """Balle and Wang (2018), Theorem 8, in logarithms."""
    s = sensitivity / described["noise_scale"]
    first = float(log_ndtr(s / 2 - epsilon / s))
    second = epsilon + float(log_ndtr(-s / 2 - epsilon / s))
    return math.exp(first) * -math.expm1(min(second - first, 0.0))


def _objective_delta(described: Described, epsilon: float) -> float:
    """Redberg, Koskela and Wang (2023), the privacy profile."""
    s = described["lipschitz"] / described["noise_scale"]
    rest = epsilon - _jacobian(described)
    if rest >= s * s / 2:
        return 2 * _gaussian_delta(described["lipschitz"], described, rest)
    level = math.exp(rest - s * s / 2)
    at_level = _gaussian_delta(described["lipschitz"], described, s * s / 2)
    return max(1 - level + 2 * level * at_level, 0.0)
