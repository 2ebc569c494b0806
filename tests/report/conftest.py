# SPDX-License-Identifier: Apache-2.0
"""Runs on a small table, as the tests of the command line have them."""

from tests.cli.small import finished, seeded, small

__all__ = ["finished", "seeded", "small"]
