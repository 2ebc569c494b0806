# SPDX-License-Identifier: Apache-2.0
import pytest

from tests.networks.network_doubles import prepared


@pytest.fixture
def refused(tmp_path):
    """Return a check that a training is refused before its ledger is begun."""

    def refused(match, module=None, **more):
        path = tmp_path / "run.ledger"
        with pytest.raises(ValueError, match=match):
            prepared(module, ledger=path, **more)
        assert not path.exists()

    return refused
