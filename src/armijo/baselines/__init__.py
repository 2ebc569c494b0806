# SPDX-License-Identifier: Apache-2.0
"""Published methods to compare with."""
