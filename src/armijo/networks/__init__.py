# SPDX-License-Identifier: Apache-2.0
"""The networks of the paper."""

from armijo.networks.models import cnn_cifar, cnn_small, mlp_256, mlp_1000

__all__ = ["cnn_cifar", "cnn_small", "mlp_256", "mlp_1000"]
