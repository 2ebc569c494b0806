# SPDX-License-Identifier: Apache-2.0
"""The public rules of the automatic method: how the budget is split and what follows.

All releases are Gaussian and on all rows, so that together they are one Gaussian of
noise multiplier sigma: a release with the share f of ``1/sigma^2`` has the multiplier
``sigma / sqrt(f)``.  Every other constant is a function of sigma, of the public number
of rows and features, and of nothing else.
"""

import math
from dataclasses import dataclass

from armijo.privacy.mechanisms import Gaussian

FIRST_STEP = 8.0
"""First step along the preconditioned direction: twice Newton's at zero weights."""

SMALLEST_STEP, LARGEST_STEP = FIRST_STEP / 8, FIRST_STEP * 4
"""Where the search stops."""

READABLE = 8.0
"""Standard deviations of noise that the count of all rows shall be, in the histogram
of their norms."""

MOST_FOR_NORM = 0.25
"""The most that this histogram may take of what the other releases leave."""

MOST_FEATURES = 1024
"""Beyond so many the matrix of second moments is not measured."""

SCORE_NOISE = 16.0
"""Noise that all steps together may leave in a weight, times the root of d."""

INTERCEPT_NOISE = 4.0
"""The same for the intercept."""

INTERCEPT_CAUTION = 2.0
"""Damping of the intercept's step, in squares of the constant feature.

A hinge whose features say little has all its kinks in one place, where full steps of
the intercept jump back and forth."""

SMALL_NOISE = 0.004
"""Noise of the mean gradient beyond which weights are held back further."""

MOMENT_FLOOR = 0.5
"""Smallest damping, in spectral norms of the noise in the second moments."""

SMALLEST_DAMPING = 1e-6
"""Smallest damping of all, where there is no noise."""

LARGEST_CLIP = 1e3
"""Where the clip ends as noise vanishes; it clips nothing there."""


@dataclass(frozen=True, kw_only=True)
class Shares:
    """How ``1/sigma^2`` is split; the gradients get the rest."""

    norm: float
    center: float
    moments: float
    search: float

    @property
    def gradients(self) -> float:
        """What is left for the gradients of all steps."""
        return 1.0 - (self.norm + self.center + self.moments + self.search)


@dataclass(frozen=True, kw_only=True)
class AutoRules:
    """Mechanisms, clips and damping from public numbers.

    Attributes
    ----------
    noise : float
        Noise multiplier sigma of the whole run.
    n_rows, n_features, steps : int
        Public sizes.
    shares : Shares
        The split of the budget.
    fit_intercept : bool
        Whether there is an intercept.

    Examples
    --------
    >>> shares = Shares(norm=0.01, center=0.02, moments=0.03, search=0.05)
    >>> rules = AutoRules(noise=10.0, n_rows=40000, n_features=100, steps=30,
    ...                   shares=shares, fit_intercept=True)
    >>> round(rules.clip, 3), round(rules.constant, 3)
    (0.849, 0.3)
    """

    noise: float
    n_rows: int
    n_features: int
    steps: int
    shares: Shares
    fit_intercept: bool

    def released(self, share: float) -> Gaussian:
        """Return the mechanism of a sum of sensitivity one with this share."""
        return Gaussian(noise_scale=self.noise / math.sqrt(share))

    @property
    def gradient(self) -> Gaussian:
        """The gradient of every step, in units of its clip."""
        return self.released(self.shares.gradients / self.steps)

    def search(self, update: int, points: int) -> Gaussian:
        """Return the search of one step, of ``points`` drops in units of their clip.

        Every doubling of the number of steps gets the same share: the first searches
        find the step, the later ones follow it.
        """
        octave = int(math.log2(update + 1))
        octaves = int(math.log2(self.steps)) + 1
        length = min(2**octave, self.steps + 1 - 2**octave)
        share = self.shares.search / (octaves * length)
        root = math.sqrt(points)
        return Gaussian(
            noise_scale=root * self.noise / math.sqrt(share), sensitivity=root
        )

    @property
    def clip(self) -> float:
        """The clip of a gradient in the frame, where an average row has norm one.

        A small clip has little noise and more bias: fourth root of rows over noise.
        """
        if self.noise == 0:
            return LARGEST_CLIP
        root = (1e-3 * self.n_rows / self.noise) ** 0.25
        return min(max(0.6 * root, 0.5), LARGEST_CLIP)

    @property
    def mean_noise(self) -> float:
        """Noise that is left in the mean of the gradients of all steps."""
        root = math.sqrt(self.shares.gradients)
        return self.noise * self.clip / (self.n_rows * root)

    @property
    def constant(self) -> float:
        """The constant feature: larger under noise, when the intercept is worth more.

        Zero without an intercept.
        """
        if not self.fit_intercept:
            return 0.0
        return min(max(30 * self.noise * self.clip / self.n_rows, 0.3), 1.0)

    def _held_back(self, most: float) -> float:
        """Return the damping under which noise moves a weight by at most ``most``.

        Steps of size ``FIRST_STEP / damping`` add up to ``FIRST_STEP steps / damping``
        times the noise of the mean gradient.
        """
        shrink = 1 + self.mean_noise / SMALL_NOISE
        return FIRST_STEP * self.steps * self.mean_noise / most * shrink

    @property
    def damping(self) -> float:
        """What is added to the second moments before they are inverted."""
        d = self.n_features
        damping = max(self._held_back(SCORE_NOISE / math.sqrt(d)), SMALLEST_DAMPING)
        if not self.has_moments:
            return damping
        noise = self.released(self.shares.moments).noise_scale / self.n_rows
        return max(damping, MOMENT_FLOOR * noise * math.sqrt(2 * d))

    @property
    def intercept_damping(self) -> float:
        """What is added to the squared constant feature for the intercept's step."""
        caution = INTERCEPT_CAUTION * self.constant**2
        noise = self._held_back(INTERCEPT_NOISE / max(self.constant, 1e-12))
        return max(caution, noise)

    @property
    def has_moments(self) -> bool:
        """Whether the second moments are measured."""
        return self.shares.moments > 0
