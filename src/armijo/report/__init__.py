# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind: its report, and whether all of it holds together."""
