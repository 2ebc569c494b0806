# SPDX-License-Identifier: Apache-2.0
"""Differentially private training that finds its own step size.

Public names are imported when they are first used (SPEC 1), so that accounting does
without torch.  ``__init__.pyi`` lists them, for type checkers as well.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
