# SPDX-License-Identifier: Apache-2.0
"""Scale and offsets of scores, corrected by three small releases.

Clipped slopes make probabilities timid, and noise makes them bold: how much of both is
known before a release (:func:`first_factor`).  Scores become ``a x + b`` with
``x = clip((score - b0) / S, -1, 1)``, where S is three root mean squares: for more than
two classes one scale and an offset for each class.  The first release corrects the
offsets, the other two both, by Newton steps that a normal prior damps: the more so, the
larger the noise.  Curvatures are those of a normal score: nothing is released for them.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from armijo.accounting.budget import FloatArray
from armijo.accounting.mechanisms import Gaussian
from armijo.objectives.elementwise import sigmoid
from armijo.objectives.losses import softmax_slopes

ROOMS = 3.0  # root mean squares at which scores are cut
BEYOND = 0.5  # slope beyond the cut in predictions, which keep the order of scores
FIRST_PART = 0.2  # of the share, for the first offsets
LAST_ROUNDS = 2
PRIOR = 0.5  # standard deviation of scale and offset before anything is known
LEAST_FACTOR, MOST_FACTOR = 0.3, 3.0  # by which scores are multiplied at first
REACH_POWER = 0.4  # of the reciprocal of the way that was gone, in that factor
CLEAR_SIGNAL = 3.0  # standard deviations of signal at which half that power is taken
LEAST_RMS, LEAST_CURVATURE = 0.05, 0.002
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()


def first_factor(variance: float, noises: FloatArray, way: float) -> float:
    """Return what scores are multiplied by before a release tells more.

    Noise makes scores too bold: what is left is the share of the signal in their
    variance.  Steps that end long before the optimum make them too timid: they grow
    by a power of the way that is left, the surer the signal the larger.  The factor is
    above zero, so the order of scores stays.

    Parameters
    ----------
    variance : float
        The variance of a score.
    noises : array
        What noise in the gradients gives it, by independent directions.
    way : float
        How far the steps can have come, in distances of start and optimum.

    >>> nothing = first_factor(1.0, np.full(50, 0.02), 1e-3)
    >>> clear = first_factor(2.0, np.full(50, 0.01), 1e-2)
    >>> round(nothing, 2), round(clear, 2)
    (0.3, 3.0)
    """
    noise = float(noises.sum())
    error = math.sqrt(2 * float((noises**2).sum()))
    if error <= 0:  # no noise, or none whose square is a number
        return 1.0
    surplus = max((variance - noise) / error, 1e-9)
    power = REACH_POWER / (1 + (CLEAR_SIGNAL / surplus) ** 2)
    signal = max(1 - noise / max(variance, 1e-300), 0.0)
    factor = signal * (1 + 1 / max(way, 1e-9)) ** power
    return min(max(factor, LEAST_FACTOR), MOST_FACTOR)


@dataclass(frozen=True)
class Recalibration:
    """What is public of the releases.

    Attributes
    ----------
    noise, share, clip : float
        Noise of the run, the share of these releases, the clip of its gradients.
    n_rows, outputs : int
        Public number of rows, and of scores for a row.
    """

    noise: float
    share: float
    clip: float
    n_rows: int
    outputs: int

    def mechanism(self, update: int) -> Gaussian:
        """Return the release: offsets, or both."""
        part = FIRST_PART if update == 0 else (1 - FIRST_PART) / LAST_ROUNDS
        one = 1.0 if self.outputs == 1 else math.sqrt(2)  # norm of p minus the label
        bound = one if update == 0 else one * math.sqrt(2)
        scale = bound * self.noise / math.sqrt(part * self.share)
        return Gaussian(noise_scale=scale, sensitivity=bound)

    @property
    def prior(self) -> float:
        """The prior standard deviation: less where slopes were clipped less."""
        return PRIOR * min(1.0, (0.6 / self.clip) ** 2)

    def begin(
        self, rms: float, intercepts: FloatArray, factor: float = 1.0
    ) -> FloatArray:
        """Return what is known: S, first and present scale and offsets, sums.

        ``factor`` is what scores are multiplied by at first.
        """
        size = self.outputs
        scale = ROOMS * max(rms, LEAST_RMS)
        start = np.concatenate([[factor * scale], intercepts])
        # S; rms; b0; (a, b) to start from; theta; sums of theta and of gradients
        head = np.concatenate([[scale, rms], intercepts])
        return np.concatenate([head, start, np.zeros(3 * (size + 1))])

    def _parts(self, known: FloatArray) -> tuple[float, float, list[FloatArray]]:
        size = self.outputs
        ends = np.cumsum([2, size, size + 1, size + 1, size + 1])
        return float(known[0]), float(known[1]), np.split(known, ends)[1:]

    def parameters(self, known: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """Return S, the first offsets, and scale and offsets at present."""
        scale, _, (first, start, theta, _, _) = self._parts(known)
        return scale, first, start + self._deviations(scale) * theta

    def _deviations(self, scale: float) -> FloatArray:
        return np.concatenate([[self.prior * scale], np.full(self.outputs, self.prior)])

    def logits(self, known: FloatArray, scores: FloatArray) -> FloatArray:
        """Return corrected scores, (rows, outputs)."""
        scale, first, now = self.parameters(known)
        cut = self._cut(scores, first, scale)
        beyond = (scores - first) / scale - cut
        return np.asarray(now[0] * (cut + BEYOND * beyond) + now[1:])

    def gradients(
        self, known: FloatArray, scores: FloatArray, y: NDArray[np.float64], update: int
    ) -> FloatArray:
        """Return each row's gradient in the offsets, or in scale and offsets."""
        scale, first, now = self.parameters(known)
        cut = self._cut(scores, first, scale)
        logits = now[0] * cut + now[1:]
        if self.outputs == 1:
            wrong = sigmoid(logits) - (y[:, None] > 0)
            wrong[np.isnan(y)] = np.nan
        else:
            wrong = softmax_slopes(logits, y)
        if update == 0:
            return np.asarray(wrong)
        slope = np.zeros(len(y))
        for x, gap in zip(cut.T, wrong.T, strict=True):
            slope += gap * x
        return np.column_stack([slope, wrong])

    def _cut(self, scores: FloatArray, first: FloatArray, scale: float) -> FloatArray:
        return np.asarray(np.clip((scores - first) / scale, -1.0, 1.0))

    def _curvature(self, known: FloatArray, shares: FloatArray) -> FloatArray:
        """Return the Hessian in scale and offsets for normal scores."""
        scale, rms, (_, start, *_) = self._parts(known)
        z = np.clip(rms * _POINTS / scale, -1.0, 1.0)
        if self.outputs == 1:
            p = expit(start[0] * z + start[1])
            q = p * (1 - p) * _WEIGHTS
            mixed = float((q * z).sum())
            return np.array(
                [[float((q * z * z).sum()), mixed], [mixed, float(q.sum())]]
            )
        spread = shares * (1 - shares)
        square = float((_WEIGHTS * z * z).sum())
        return np.diag([square * float(spread.sum()), *spread])

    def corrected(
        self, known: FloatArray, noisy: FloatArray, update: int, shares: FloatArray
    ) -> FloatArray:
        """Return what is known after a release of mean gradients."""
        known = known.copy()
        scale, rms, (_, start, theta, thetas, sums) = self._parts(known)
        noise = self.mechanism(update).noise_scale / self.n_rows
        if update == 0:
            known[2 + self.outputs :][1 : self.outputs + 1] -= self._offset_step(
                rms, start[1:], noisy, noise, shares
            )
            return known
        curvature = self._curvature(known, shares)
        values, vectors = np.linalg.eigh(curvature)
        curvature = (vectors * np.maximum(values, LEAST_CURVATURE)) @ vectors.T
        own = self._deviations(scale)
        scaled = curvature * own[:, None] * own
        values, vectors = np.linalg.eigh(scaled)
        values = np.maximum(values, 1e-6)
        thetas = thetas + theta
        sums = sums + own * noisy
        found = vectors.T @ (scaled @ thetas - sums) / update
        variance = np.diag(vectors.T @ np.diag(own**2) @ vectors) * noise**2 / update
        new = vectors @ (found / (values + variance / values))
        # The scale stays above a tenth of the first one.
        new[0] = min(max(new[0], -0.9 * start[0] / own[0]), 4 / self.prior)
        new[1:] = np.clip(new[1:], -3 / self.prior, 3 / self.prior)
        tail = 3 * (self.outputs + 1)
        known[-tail:] = np.concatenate([new, thetas, sums])
        return known

    def _offset_step(
        self,
        rms: float,
        offsets: FloatArray,
        noisy: FloatArray,
        noise: float,
        shares: FloatArray,
    ) -> FloatArray:
        wide = max(self.prior, 0.2)
        if self.outputs == 1:
            p = expit(offsets[0] + rms * _POINTS)
            curvature = np.array([max(float((_WEIGHTS * p * (1 - p)).sum()), 0.03)])
        else:
            curvature = np.maximum(shares * (1 - shares), 0.03)
        return np.asarray(noisy * curvature / (curvature**2 + (noise / wide) ** 2))
