# SPDX-License-Identifier: Apache-2.0
"""``armijo --version``."""

from importlib.metadata import version

import armijo as package


def test_the_version_is_printed(armijo):
    done = armijo("--version")
    assert done == (0, f"armijo {package.__version__}\n", "")
    assert version("armijo") == package.__version__
