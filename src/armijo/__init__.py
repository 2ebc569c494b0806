# SPDX-License-Identifier: Apache-2.0
"""Differentially private training that finds its own step size."""

__version__ = "0.1.0"
