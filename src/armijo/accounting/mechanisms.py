# SPDX-License-Identifier: Apache-2.0
"""Mechanisms as public settings, each with its own Renyi curve.

A mechanism is a frozen dataclass: its fields are public and say all that an accountant
may know.  ``rdp(orders)`` bounds the Renyi divergence in *both* directions between
neighboring inputs; AboveThreshold has a file of its own.  ``dp_event()`` translates it
for ``dp-accounting``, which planned runs are accounted with and every run is verified
with, or returns None.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from scipy.special import hyp1f1

from armijo import _validate
from armijo.accounting.budget import FloatArray
from armijo.accounting.conversion import gaussian_delta


class Mechanism(ABC):
    """What has a privacy curve; hashable, so that costs can be cached.

    A kind of its own gives :meth:`rdp`; the other answers have defaults that are true
    of every mechanism.
    """

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


def parts(mechanism: object) -> Iterator[object]:
    """Yield a mechanism and everything it is built from.

    >>> len(list(parts(Composed((Gaussian(noise_scale=1.0), PureDP(0.1))))))
    3
    """
    if isinstance(mechanism, tuple):
        for item in mechanism:
            yield from parts(item)
    elif is_dataclass(mechanism):
        yield mechanism
        for one in fields(mechanism):
            yield from parts(getattr(mechanism, one.name))


def _plain(value: object) -> object:
    """Turn nested mechanisms and tuples into JSON values."""
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

    noise_scale: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _validate.non_negative(noise_scale=self.noise_scale)
        _validate.positive(sensitivity=self.sensitivity)

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

    epsilon: float

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the tight curve."""
        a, eps = np.asarray(orders, dtype=float), self.epsilon
        gain = np.log1p(np.exp(-(2 * a - 1) * eps)) - np.log1p(np.exp(-eps))
        # cosh u - cosh v = 2 sinh((u+v)/2) sinh((u-v)/2): no cancellation when small.
        near = np.minimum(a * eps, 2.0) / a
        rise = 2 * np.sinh(a * near / 2) * np.sinh((a - 1) * near / 2)
        small = np.log1p(rise / np.cosh(near / 2))
        return np.where(a * eps < 2, small / (a - 1), eps + gain / (a - 1))


@dataclass(frozen=True)
class ExponentialMechanism(Mechanism):
    """Exponential mechanism: pick j with weight ``exp(epsilon u_j / (2 sensitivity))``.

    Report-noisy-max with Gumbel noise is the same law.  It has ``epsilon``-bounded
    range (Durfee and Rogers 2019), whose tight curve is a one-dimensional maximum
    (Cesar and Rogers 2021) and never exceeds ``a epsilon^2 / 8``.
    """

    epsilon: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon, sensitivity=self.sensitivity)

    def rdp(self, orders: FloatArray) -> FloatArray:
        """Return the tight bounded-range curve."""
        a = np.atleast_1d(np.asarray(orders, dtype=float))
        curve = np.array([_bounded_range(order, self.epsilon) for order in a])
        return curve.reshape(np.shape(orders))

    def integer_curve(self, top: int) -> FloatArray:
        """Return the chords between some orders."""
        return chord_curve(self, top)


def _bounded_range(order: float, epsilon: float) -> float:
    """Maximize the divergence of two-point laws whose loss is t or t - epsilon."""
    cap = order * epsilon**2 / 8
    if order * epsilon < 1e-3:
        return cap  # tight to 1e-7 there, and the maximum below would cancel
    low, high = 0.0, epsilon
    best = 0.0
    for _ in range(4):
        t = np.linspace(low, high, 257)[1:-1]
        # Probabilities e^{-t} (1 - e^{t-eps}) and 1 - e^{-t}, over 1 - e^{-eps}.
        high_loss = np.log(-np.expm1(t - epsilon)) - t + order * t
        low_loss = np.log(-np.expm1(-t)) + order * (t - epsilon)
        h = np.logaddexp(high_loss, low_loss) - math.log(-math.expm1(-epsilon))
        peak = int(np.argmax(h))
        best = max(best, float(h[peak]))
        step = t[1] - t[0]
        low, high = max(t[peak] - step, 0.0), min(t[peak] + step, epsilon)
    return min(best / (order - 1) * (1 + 1e-12), cap, epsilon)


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
    count: int

    def __post_init__(self) -> None:
        _validate.at_least(1, count=self.count)

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
