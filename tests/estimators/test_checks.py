# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's own checks: all of them, with no expected failure."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from armijo import BLGD, BLSGD
from armijo.estimators import PrivateLinearSVC, PrivateLogisticRegression

SMALL = {
    "method": BLSGD(gradient_rho=0.05, search_epsilon=0.3),
    "epsilon": 5.0,
    "max_batches": 10,
}
ALL_ROWS = BLGD(gradient_rho=0.05, search_epsilon=0.3)


@pytest.mark.filterwarnings("ignore::armijo.errors.PrivacyLeakWarning")
@parametrize_with_checks(
    [
        PrivateLogisticRegression(),
        PrivateLinearSVC(),
        PrivateLogisticRegression(**SMALL),
        PrivateLinearSVC(loss="huber", **{**SMALL, "method": ALL_ROWS}),
    ]
)
def test_scikit_learn(estimator, check):
    check(estimator)


def test_the_only_reserved_tag_is_the_score():
    tags = PrivateLogisticRegression().__sklearn_tags__()
    assert tags.classifier_tags.poor_score
    assert not tags.non_deterministic
    assert not tags.no_validation
    assert not tags._skip_test
    assert tags.input_tags.sparse
    assert tags.classifier_tags.multi_class
    assert not PrivateLinearSVC().__sklearn_tags__().classifier_tags.multi_class
