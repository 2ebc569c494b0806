# SPDX-License-Identifier: Apache-2.0
"""Mechanisms, their privacy curves, and the accountants that charge for them."""
