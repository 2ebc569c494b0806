# SPDX-License-Identifier: Apache-2.0
"""The networks of the paper, and what prepares a module for a private training."""

from armijo.images.features import features
from armijo.networks.models import cnn_cifar, cnn_small, mlp_256, mlp_1000
from armijo.networks.preparation import Standardize, he_init_

__all__ = [
    "Standardize",
    "cnn_cifar",
    "cnn_small",
    "features",
    "he_init_",
    "mlp_256",
    "mlp_1000",
]
