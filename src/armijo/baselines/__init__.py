# SPDX-License-Identifier: Apache-2.0
"""Published methods to compare with."""

from armijo.baselines.agd import AGD
from armijo.baselines.hyfree import HyFree
from armijo.baselines.perturbation import (
    AMP,
    ObjPert,
    ObjPertKST,
    ObjPertPure,
    OutpertGD,
    OutpertRSGD,
)
from armijo.baselines.privgene import PrivGene
from armijo.baselines.trivial import Majority, NonPrivateMinimum
from armijo.baselines.tuned import TunedSGD

__all__ = [
    "AGD",
    "AMP",
    "HyFree",
    "Majority",
    "NonPrivateMinimum",
    "ObjPert",
    "ObjPertKST",
    "ObjPertPure",
    "OutpertGD",
    "OutpertRSGD",
    "PrivGene",
    "TunedSGD",
]
