# SPDX-License-Identifier: Apache-2.0
"""The border of ``armijo.accounting``: its public names, and what it does without."""

import armijo.accounting


def test_public_names_come_from_the_package_and_are_documented():
    for name in armijo.accounting.__all__:
        value = getattr(armijo.accounting, name)
        assert value.__module__.startswith("armijo.accounting."), name
        assert value.__doc__, name
