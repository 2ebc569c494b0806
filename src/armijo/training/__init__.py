# SPDX-License-Identifier: Apache-2.0
"""What drives a method: accountant, checkpoint, run key and divergence."""
