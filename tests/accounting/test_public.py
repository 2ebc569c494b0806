# SPDX-License-Identifier: Apache-2.0
"""The border of ``armijo.accounting``: its public names, and what it does without."""

import subprocess
import sys

import armijo.accounting

HEAVY = ("torch", "pandas", "sklearn", "matplotlib")


def test_all_public_names_are_there_and_need_neither_torch_nor_tables():
    script = f"""
import sys
import armijo.accounting as accounting
assert accounting.__all__ and set(accounting.__all__) <= set(dir(accounting))
for name in accounting.__all__:
    getattr(accounting, name)
assert not set({HEAVY!r}) & set(sys.modules), set({HEAVY!r}) & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_public_names_come_from_the_package_and_are_documented():
    for name in armijo.accounting.__all__:
        value = getattr(armijo.accounting, name)
        assert value.__module__.startswith("armijo.accounting."), name
        assert value.__doc__, name
