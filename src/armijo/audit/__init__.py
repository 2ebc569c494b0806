# SPDX-License-Identifier: Apache-2.0
"""Audits: lower bounds on epsilon from what the package really releases.

A proof bounds epsilon from above, for the mechanism that was meant.  An audit bounds it
from below, for the code that runs: it plays a game against it, counts how often the
game is won, and says which epsilon that rules out.  Where the lower bound exceeds the
claim, the claim is false (up to the stated confidence).  Where it does not, nothing is
proved.

=====================  =========================================================
:mod:`~.bounds`        from counted errors of a test to epsilon, exactly
:mod:`~.games`         the two-dataset game: trials, attack, bound
:mod:`~.targets`       the games by name: searches, noise, networks, runs
:mod:`~.one_run`       many canaries in one trained model
:mod:`~.suite`         several audits under one confidence; JSON and a picture
=====================  =========================================================
"""
