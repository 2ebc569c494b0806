# SPDX-License-Identifier: Apache-2.0
"""Exact integer noise and Poisson sampling, from bits of :mod:`armijo.randomness`.

Noise is added to integers only, so nothing is lost to floating point (Mironov 2012).
The families are the continuous Laplace and Gaussian distributions *rounded to the
nearest integer*, with an integer scale in lattice units: the noisy integer is
post-processing of the continuous mechanism (docs/noise.md). The survival function on
the lattice is the continuous one at half-integers, so the analysis of AboveThreshold
applies without an inflation term. The draws are exact; their running time depends on
them and is not protected against an observer of time.

=====================  ==============================================================
:mod:`~.gaussian`      rounded Gaussian noise, in blocks, on several threads
:mod:`~.rejection`     rounded Laplace noise, exponential mechanism, Poisson batches
=====================  ==============================================================
"""

from armijo._noise.gaussian import add_gaussian, rounded_gaussian
from armijo._noise.rejection import (
    MAX_SCALE,
    PoissonRows,
    exponential_choice,
    poisson_sample,
    rounded_laplace,
)

__all__ = [
    "MAX_SCALE",
    "PoissonRows",
    "add_gaussian",
    "exponential_choice",
    "poisson_sample",
    "rounded_gaussian",
    "rounded_laplace",
]
