# SPDX-License-Identifier: Apache-2.0
"""Run the command line with ``python -m armijo``."""

from armijo.cli import main

main()
