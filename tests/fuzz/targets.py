# SPDX-License-Identifier: Apache-2.0
"""All readers under test, by name."""

from tests.fuzz.cli_targets import CLI_TARGETS
from tests.fuzz.run_targets import RUN_TARGETS
from tests.fuzz.table_targets import TABLE_TARGETS

TARGETS = {**TABLE_TARGETS, **RUN_TARGETS, **CLI_TARGETS}
