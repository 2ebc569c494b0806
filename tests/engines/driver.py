# SPDX-License-Identifier: Apache-2.0
"""A driver that a test kills: ``driver.py ENGINE FOLDER OUT [--die] [--resume]``.

Its run key is known, so that its model can be compared with another's.
"""

import math
import os
import signal
import sys
import warnings

from armijo.cli.fit import fit_table
from armijo.errors import RechargeWarning
from armijo.training import replay, run

LAST = 8
"""The batch after which a driver dies."""


def fit(engine, folder, out, *, die=False, resume=False, key=7, **options):
    """Fit the files, with a run key that is known."""
    replay.fresh_key = lambda: bytes([key]) * replay.KEY_BYTES

    def callback(record):
        if die and record.batch == LAST:
            os.kill(os.getpid(), signal.SIGKILL)

    return fit_table(
        f"{folder}/data",
        schema=f"{folder}/schema.toml",
        out=out,
        parameters={"epsilon": 1.0, "delta": 1e-5},
        callback=callback,
        resume=resume,
        engine=None if engine == "memory" else engine,
        **options,
    )


if __name__ == "__main__":
    engine, folder, out, *flags = sys.argv[1:]
    if "--die" in flags:
        run._SAVE_EVERY = math.inf  # its checkpoint is that of the start
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            fit(engine, folder, out, die="--die" in flags, resume="--resume" in flags)
        finally:
            again = [w for w in told if issubclass(w.category, RechargeWarning)]
            print("charged again:", *(w.message for w in again))
