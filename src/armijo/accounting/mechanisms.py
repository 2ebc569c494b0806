# SPDX-License-Identifier: Apache-2.0
"""Mechanisms as public settings, each with its own Renyi curve.

A mechanism is a frozen dataclass: its fields are public and say all that an accountant
may know.  ``rdp(orders)`` bounds the Renyi divergence in *both* directions between
neighboring inputs; AboveThreshold has a file of its own.  ``dp_event()`` translates it
for ``dp-accounting``, which planned runs are accounted with and every run is verified
with, or returns None.

All releases computed from one Poisson batch form *one* mechanism: their un-amplified
curves are summed and amplified once.  The factor 3 of Zhu and Wang (2019) is not
needed for any mechanism whose curve bounds both directions (docs/proofs.md, Theorem B),
so for every integer order a >= 2

    eps'(a) = log{1 + sum_{l=2}^a C(a,l) q^l (1-q)^{a-l} (e^{(l-1) eps(l)} - 1)}/(a-1)
"""

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import ClassVar

import dp_accounting as dpa
import numpy as np
from numpy.typing import ArrayLike
from scipy.special import erfcx, gammaln, hyp1f1, logsumexp, ndtr

from armijo import _validate
from armijo._validate import AboveOne, Count, NonNegative, Positive, SamplingProb
from armijo.accounting.budget import FloatArray

LARGEST_ORDER = 2**18
"""The best order of an epsilon of 1e-4 at delta 1e-5; larger budgets need less."""

SELECTION_ORDERS = np.unique(
    np.rint(np.concatenate([np.arange(2, 65), np.geomspace(64, 4096, 97)]))
)
"""Orders at which the inner curve is looked at; integers, so that any curve will do."""


KINDS: dict[str, type["Mechanism"]] = {}
"""The mechanisms of this package by the names that ledgers call them."""


class Mechanism(ABC):
    """What has a privacy curve; hashable, so that costs can be cached.

    A kind of its own is a frozen dataclass whose fields have the types of
    ``armijo._validate``, which check them, and gives :meth:`rdp`; the other answers
    have defaults that are true of every mechanism.

    Attributes
    ----------
    self_composed : bool
        Whether it is a number of uses of another one.
    """

    self_composed: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        if cls.__module__.startswith("armijo."):
            KINDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        _validate.fields(self)

    @property
    def add_remove_only(self) -> bool:
        """Whether it is proved for one row more or less, not for an exchanged one."""
        return False

    @abstractmethod
    def rdp(self, orders: FloatArray) -> FloatArray:
        """Bound the Renyi divergence at each order above one."""

    def integer_curve(self, top: int) -> FloatArray:
        """Return ``curve[l]`` for l = 0..top (entries 0 and 1 are zero)."""
        curve = np.zeros(top + 1)
        curve[2:] = self.rdp(np.arange(2.0, top + 1))
        return curve

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the same mechanism for dp-accounting, None if it has no such event."""
        return None

    def delta_at(self, epsilon: float) -> float:
        """Return the smallest delta that a proof beside the curve gives; 1 if none."""
        return 1.0

    def as_gaussian(self) -> "Gaussian | None":
        """Return the one Gaussian release that this is on all rows, if it is one."""
        return None

    def noise_ratios(self) -> tuple[float, ...]:
        """Return noise over sensitivity of each draw on a sum over rows.

        None of them means that the mechanism is no such sum: it needs all rows in one
        process.
        """
        return ()


def describe(mechanism: object) -> dict[str, object]:
    """Return the public settings of a mechanism as a JSON object for the ledger.

    >>> describe(Gaussian(noise_scale=2.0))
    {'mechanism': 'Gaussian', 'noise_scale': 2.0, 'sensitivity': 1.0}
    """
    if not is_dataclass(mechanism):
        raise TypeError(f"Expected a mechanism, got {mechanism!r}; give a dataclass.")
    settings = {f.name: _plain(getattr(mechanism, f.name)) for f in fields(mechanism)}
    return {"mechanism": type(mechanism).__name__, **settings}


def description_key(description: Mapping[str, object]) -> str:
    """Return a description as text that does not depend on the order of its keys."""
    return json.dumps(description, sort_keys=True)


def parts(mechanism: object) -> Iterator[Mechanism]:
    """Yield a mechanism and everything it is built from.

    >>> len(list(parts(Composed((Gaussian(noise_scale=1.0), PureDP(0.1))))))
    3
    """
    if isinstance(mechanism, tuple):
        for item in mechanism:
            yield from parts(item)
    elif is_dataclass(mechanism):
        if isinstance(mechanism, Mechanism):
            yield mechanism
        for field in fields(mechanism):
            yield from parts(getattr(mechanism, field.name))


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return describe(value) if is_dataclass(value) else value


def laplace_rdp(orders: FloatArray, epsilon: float | FloatArray) -> FloatArray:
    """Bound Laplace noise whose sensitivity over scale is ``epsilon`` (exact).

    Mironov (2017), Proposition 6.
    """
    a = np.asarray(orders, dtype=float)
    up, down = (a - 1) * epsilon, -a * epsilon
    near = np.minimum(up, 1.0)  # the other branch is taken above one
    # The terms linear in epsilon cancel exactly: left out, small costs keep digits.
    small = (a * _expm1_minus(near) + (a - 1) * _expm1_minus(down)) / (2 * a - 1)
    large = np.logaddexp(np.log(a) + up, np.log(a - 1) + down) - np.log(2 * a - 1)
    return np.where(up < 1, np.log1p(small), large) / (a - 1)


def _expm1_minus(x: FloatArray) -> FloatArray:
    """Return ``exp(x) - 1 - x`` without cancellation."""
    return x * x / 2 * hyp1f1(1.0, 3.0, x)


def gaussian_delta(epsilon: float, noise_multiplier: float) -> float:
    """Return the exact delta of one Gaussian release at ``epsilon``.

    ``Phi(1/2s - epsilon s) - e^epsilon Phi(-1/2s - epsilon s)`` with the noise
    multiplier s, Balle and Wang (2018), Theorem 8.  Written with the scaled
    complementary error function: nothing overflows, and small deltas keep their digits.

    >>> gaussian_delta(1.0, 3.731) < 1e-5 < gaussian_delta(1.0, 3.73)
    True
    """
    _validate.non_negative(epsilon=epsilon)
    _validate.positive(noise_multiplier=noise_multiplier)
    root_two, half = math.sqrt(2.0), 0.5 / noise_multiplier
    low, high = epsilon * noise_multiplier - half, epsilon * noise_multiplier + half
    # e^epsilon Phi(-high) = e^{-low^2/2} erfcx(high/sqrt 2)/2: high^2 - low^2 = 2 eps.
    scale = 0.5 * math.exp(-0.5 * low * low)
    second = erfcx(high / root_two)
    if low < 0:  # there erfcx(low) may overflow, and Phi(-low) is at least one half
        return max(float(ndtr(-low) - scale * second), 0.0)
    return max(float(scale * (erfcx(low / root_two) - second)), 0.0)


def pure_delta(epsilon: float, proved: float) -> float:
    """Return the worst delta at ``epsilon`` of a mechanism that is ``proved``-DP.

    ``(e^E - e^epsilon) / (1 + e^E)`` below the proved E, else zero: that of randomized
    response, Kairouz, Oh and Viswanath (2015), Theorem 3.3.

    >>> pure_delta(1.0, 1.0), round(pure_delta(0.0, 1.0), 6)
    (0.0, 0.462117)
    """
    _validate.non_negative(epsilon=epsilon)
    if epsilon >= proved:
        return 0.0
    return -math.expm1(epsilon - proved) / (1 + math.exp(-proved))


def knots(top: int) -> FloatArray:
    """Return the integer orders at which a costly curve is evaluated."""
    dense = np.arange(2, min(top, 32) + 1)
    sparse = np.rint(np.geomspace(min(top, 32), top, 60))
    return np.unique(np.concatenate([dense, sparse])).astype(float)


@lru_cache(maxsize=128)
def chord_curve(mechanism: Mechanism, top: int) -> FloatArray:
    """Return the integer curve of a mechanism whose orders take a search each.

    It is evaluated at knots only: (l-1) eps(l) is the cumulant of the privacy loss,
    hence convex in l, so its chords are upper bounds between the knots.
    """
    at = knots(top)
    orders = np.arange(2.0, top + 1)
    curve = np.zeros(top + 1)
    curve[2:] = np.interp(orders, at, (at - 1) * mechanism.rdp(at)) / (orders - 1)
    curve.setflags(write=False)
    return curve


@dataclass(frozen=True, kw_only=True)
class Gaussian(Mechanism):
    """Release a sum of vectors with ``N(0, noise_scale^2 I)`` added.

    Mironov (2017), Corollary 3: ``a * rho`` with ``rho = (sensitivity/noise)^2 / 2``.
    Noise scale zero is no privacy at all: its curve is infinite.
    """

    noise_scale: NonNegative
    sensitivity: Positive = 1.0

    @classmethod
    def from_rho(cls, rho: float, sensitivity: float = 1.0) -> "Gaussian":
        """Return the mechanism with zCDP budget ``rho``: sigma^2 = C^2 / (2 rho).

        Infinite rho is no noise, an infinite cost that every accountant refuses.
        """
        _validate.positive(sensitivity=sensitivity)
        if rho == math.inf:
            return cls(noise_scale=0.0, sensitivity=sensitivity)
        _validate.positive(rho=rho)
        return cls(
            noise_scale=sensitivity / math.sqrt(2 * rho), sensitivity=sensitivity
        )

    @property
    def noise_multiplier(self) -> float:
        """Noise relative to the sensitivity."""
        return self.noise_scale / self.sensitivity

    @property
    def rho(self) -> float:
        """The zCDP budget; infinite without noise."""
        if self.noise_scale == 0:
            return math.inf
        ratio = self.sensitivity / self.noise_scale
        return 0.5 * ratio * ratio

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return ``a * rho``."""
        return np.asarray(orders, dtype=float) * self.rho

    def delta_at(self, epsilon: float) -> float:
        """Return the exact delta; 1 without noise."""
        if self.noise_scale == 0:
            return 1.0
        return gaussian_delta(epsilon, self.noise_multiplier)

    def dp_event(self) -> dpa.DpEvent:
        """Return a Gaussian event with the same noise multiplier."""
        return dpa.GaussianDpEvent(self.noise_multiplier)

    def as_gaussian(self) -> "Gaussian":
        """Return the mechanism itself."""
        return self

    def noise_ratios(self) -> tuple[float, ...]:
        """Return the noise multiplier."""
        return (self.noise_multiplier,)


@dataclass(frozen=True)
class PureDP(Mechanism):
    """Any epsilon-DP mechanism; its tight curve is randomized response's.

    ``log[cosh((a - 1/2) eps) / cosh(eps / 2)] / (a - 1)``, Steinke (2022), "Sharp RDP
    and zCDP from pure DP".
    """

    epsilon: Positive

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the tight curve."""
        a, eps = np.asarray(orders, dtype=float), self.epsilon
        gain = np.log1p(np.exp(-(2 * a - 1) * eps)) - np.log1p(np.exp(-eps))
        # cosh u - cosh v = 2 sinh((u+v)/2) sinh((u-v)/2): no cancellation when small.
        near = np.minimum(a * eps, 2.0) / a
        rise = 2 * np.sinh(a * near / 2) * np.sinh((a - 1) * near / 2)
        small = np.log1p(rise / np.cosh(near / 2))
        return np.where(a * eps < 2, small / (a - 1), eps + gain / (a - 1))

    def delta_at(self, epsilon: float) -> float:
        """Return delta of the worst mechanism that is so private."""
        return pure_delta(epsilon, self.epsilon)


@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """Exponential mechanism: pick j with weight ``exp(epsilon u_j / (2 sensitivity))``.

    Report-noisy-max with Gumbel noise has the same distribution.  Its range is
    ``epsilon``-bounded (Durfee and Rogers 2019); the tight curve of that is a
    one-dimensional maximum (Cesar and Rogers 2021), at most ``a epsilon^2 / 8``.
    """

    epsilon: Positive
    sensitivity: Positive = 1.0

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the tight bounded-range curve.

        The maximum over the losses t and t - epsilon is where ``t = epsilon/2 + L(a) -
        L(a-1)`` with ``L(k) = log(sinh(k epsilon/2) / (k epsilon/2))``, and is
        ``(a L(a) - (a-1) L(a-1) - L(1)) / (a-1)``.
        """
        a, half = np.asarray(orders, dtype=float), self.epsilon / 2
        outer, inner = a * _log_sinhc(a * half), (a - 1) * _log_sinhc((a - 1) * half)
        curve = (outer - inner - _log_sinhc(np.float64(half))) / (a - 1)
        cap = np.minimum(a * self.epsilon**2 / 8, self.epsilon)
        return np.asarray(np.minimum(curve * (1 + 1e-12), cap))


@dataclass(frozen=True)
class OnlySelection(ExponentialMechanism):
    """A selection that is a whole run: its pure epsilon holds for any delta.

    Renyi curves cannot say so at a finite order.
    """

    def delta_at(self, epsilon: float) -> float:
        """Return delta of the worst ``epsilon``-DP mechanism."""
        return pure_delta(epsilon, self.epsilon)


def _log_sinhc(x: FloatArray | np.float64) -> FloatArray:
    """Return ``log(sinh(x) / x)`` of positive numbers."""
    near, far = np.zeros_like(x), np.maximum(x, 1.0)
    for k in range(9, 0, -1):  # sinh(x) / x - 1 as a series: small numbers keep digits
        near = np.minimum(x, 1.0) ** 2 / (2 * k * (2 * k + 1)) * (1 + near)
    large = far + np.log(-np.expm1(-2 * far) / (2 * far))
    return np.where(x < 1, np.log1p(near), large)


@dataclass(frozen=True)
class Composed(Mechanism):
    """Several mechanisms on the same rows; curves add (Mironov 2017, Proposition 1)."""

    mechanisms: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        if not self.mechanisms:
            raise ValueError("Expected at least one mechanism, got (); name one.")

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the sum of the curves."""
        curves = np.array([mechanism.rdp(orders) for mechanism in self.mechanisms])
        return np.asarray(curves.sum(axis=0), dtype=float)

    def integer_curve(self, top: int) -> FloatArray:
        """Return the sum of the curves."""
        return np.sum([part.integer_curve(top) for part in self.mechanisms], axis=0)

    def as_gaussian(self) -> Gaussian | None:
        """Return the Gaussian that all are together: 1/sigma^2 adds up.

        >>> float(Composed((Gaussian(noise_scale=3.0),
        ...                 Gaussian(noise_scale=4.0))).as_gaussian().noise_scale)
        2.4
        """
        parts = [part.as_gaussian() for part in self.mechanisms]
        rho = sum(math.nan if part is None else part.rho for part in parts)
        return None if math.isnan(rho) else Gaussian(noise_scale=1 / math.sqrt(2 * rho))

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the composed events; Gaussians are together one Gaussian."""
        together = self.as_gaussian()
        if together is not None:
            return together.dp_event()
        events = [part.dp_event() for part in self.mechanisms]
        return None if None in events else dpa.ComposedDpEvent(events)


@dataclass(frozen=True)
class Repeated(Mechanism):
    """One mechanism used ``count`` times, each on rows drawn anew."""

    inner: Mechanism
    count: Count
    self_composed: ClassVar[bool] = True

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return ``count`` times the curve."""
        return self.count * self.inner.rdp(orders)

    def integer_curve(self, top: int) -> FloatArray:
        """Return ``count`` times the curve."""
        return self.count * self.inner.integer_curve(top)

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the event of one use, composed with itself."""
        event = self.inner.dp_event()
        return None if event is None else dpa.SelfComposedDpEvent(event, self.count)


@dataclass(frozen=True)
class NonPrivate(Mechanism):
    """An answer without noise: its curve is infinite, every other accountant refuses.

    >>> float(NonPrivate().rdp(np.array([2.0]))[0])
    inf
    """

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return infinity at every order."""
        return np.full(np.shape(orders), np.inf)

    def dp_event(self) -> dpa.DpEvent:
        """Return the event of an access without protection."""
        return dpa.NonPrivateDpEvent()


def poisson_rdp(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """Amplify a curve by Poisson sampling, formula (AMP) above.

    Parameters
    ----------
    order : int
        An integer of 2 or more.
    sampling_prob : float
        Probability q with which one row enters the batch; 0 costs nothing and 1 is no
        amplification.
    curve : array
        ``curve[l]`` bounds both directions at order l; entries 0 and 1 are ignored.
    """
    _validate.at_least(2, order=order)
    _validate.non_negative(sampling_prob=sampling_prob)
    curve = np.asarray(curve, dtype=float)
    if sampling_prob == 0:
        return 0.0
    _validate.sampling_prob(sampling_prob=sampling_prob)
    if sampling_prob == 1:
        return float(curve[order])
    return min(_amplified(order, sampling_prob, curve), float(curve[order]))


def _amplified(order: int, sampling_prob: float, curve: FloatArray) -> float:
    """Return (AMP) itself, in logarithms: neither huge nor tiny terms are lost."""
    exponent = np.arange(1, order) * curve[2 : order + 1]
    with np.errstate(divide="ignore"):
        log_growth = np.where(
            exponent > 30, exponent, np.log(np.expm1(np.minimum(exponent, 30)))
        )
    total = float(logsumexp(log_binomial_weights(order, sampling_prob) + log_growth))
    return (math.log1p(math.exp(total)) if total < 30 else total) / (order - 1)


@lru_cache(maxsize=512)
def log_binomial_weights(order: int, sampling_prob: float) -> FloatArray:
    """Return log of C(order, l) q^l (1-q)^(order-l) for l = 2..order."""
    terms = np.arange(2, order + 1)
    table = gammaln(order + 1) - gammaln(terms + 1) - gammaln(order - terms + 1)
    table += terms * math.log(sampling_prob) + (order - terms) * math.log1p(
        -sampling_prob
    )
    table.setflags(write=False)
    return np.asarray(table)


@dataclass(frozen=True)
class Subsampled(Mechanism):
    """A mechanism run on one Poisson batch; integer orders only.

    >>> cost = Subsampled(Gaussian.from_rho(5e-5), 0.1).rdp(np.array([8.0]))
    >>> float(cost[0].round(15))
    4.000414048e-06
    """

    inner: Mechanism
    sampling_prob: SamplingProb

    @property
    def add_remove_only(self) -> bool:
        """Whether not all rows take part, which amplifies."""
        return self.sampling_prob < 1

    def rdp(self, orders: ArrayLike) -> FloatArray:
        """Return the amplified curve; at sampling probability 1 the curve itself.

        Orders above ``LARGEST_ORDER`` cost infinity, as if they could not be used:
        every order below gives a valid guarantee, and the sum over so many terms would
        take minutes and gigabytes.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        if self.sampling_prob == 1:
            return self.inner.rdp(np.asarray(orders, dtype=float))
        if np.any(a != np.rint(a)) or np.any(a < 2):
            raise ValueError(
                f"Expected integer orders >= 2 for a Poisson batch, got {orders!r}; "
                "the amplification formula holds for those only."
            )
        usable = a <= LARGEST_ORDER
        amplified = np.full(a.shape, np.inf)
        if usable.any():
            curve = self.inner.integer_curve(int(a[usable].max()))
            amplified[usable] = [
                poisson_rdp(int(order), self.sampling_prob, curve)
                for order in a[usable]
            ]
        return amplified.reshape(np.shape(orders))

    def delta_at(self, epsilon: float) -> float:
        """Return what is proved of the mechanism itself, if all rows take part."""
        return self.inner.delta_at(epsilon) if self.sampling_prob == 1 else 1.0

    def as_gaussian(self) -> Gaussian | None:
        """Return the Gaussian that it is if all rows take part."""
        return self.inner.as_gaussian() if self.sampling_prob == 1 else None

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the Poisson-sampled event; at probability 1 the event itself."""
        event = self.inner.dp_event()
        if event is None or self.sampling_prob == 1:
            return event
        return dpa.PoissonSampledDpEvent(self.sampling_prob, event)


@dataclass(frozen=True)
class RepeatAndSelect(Mechanism):
    """The best of K runs of ``inner``, K geometric with mean ``mean``.

    >>> tuned = RepeatAndSelect(Gaussian(noise_scale=10.0), mean=10.0)
    >>> round(float(tuned.rdp(np.array([20.0]))[0]), 4)
    0.6389
    """

    inner: Mechanism
    mean: AboveOne

    @property
    def stop_probability(self) -> float:
        """The probability to stop after each run, rounded down, which is safe."""
        return math.exp(-self._rate)

    @property
    def _rate(self) -> float:
        return math.log(self.mean) * (1 + 1e-12)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return Theorem 2 of Papernot and Steinke (2022) for a geometric number.

        A bound at a larger order holds at a smaller one as well.
        """
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        hat = SELECTION_ORDERS
        inner = self.inner.rdp(hat)
        # The best of all second (hat) orders, for all first ones alike.
        second = 2 * np.min((1 - 1 / hat) * inner + self._rate / hat)
        at_grid = inner + math.log(self.mean) / (hat - 1)
        from_above = np.minimum.accumulate(at_grid[::-1])[::-1]
        above = np.append(from_above, np.inf)[np.searchsorted(hat, a)]
        own = self.inner.rdp(a) + math.log(self.mean) / (a - 1)
        return (np.minimum(own, above) + second).reshape(np.shape(orders))

    def dp_event(self) -> dpa.DpEvent | None:
        """Return the selection among runs; shape 1 is geometric."""
        event = self.inner.dp_event()
        if event is None:
            return None
        return dpa.dp_event.RepeatAndSelectDpEvent(event, self.mean, 1.0)
