# SPDX-License-Identifier: Apache-2.0
"""Privacy accounting: budgets, mechanisms, accountants, calibration and the ledger.

Needs NumPy, SciPy and dp-accounting only; neither torch, nor pandas, nor scikit-learn.
The public names stand in the stub beside this file and are imported when used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
