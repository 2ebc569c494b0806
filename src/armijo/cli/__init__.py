# SPDX-License-Identifier: Apache-2.0
"""The command line: a command parses, calls one library function, prints."""

from armijo.cli.app import app, main

__all__ = ["app", "main"]
