# SPDX-License-Identifier: Apache-2.0
"""Features are functions of one image and of public numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import armijo
from armijo.data.integer_rows import FEATURE_BITS
from armijo.images import features
from armijo.images.features import (
    BASIS,
    FeatureMap,
    FeatureSettings,
    basis,
    inverse_root,
    pooling,
    settings_for,
)
from armijo.images.reading import Pictures
from armijo.images.synthetic import synthetic_images
from tests.images.doubles import small_settings


@pytest.fixture(scope="module")
def made() -> FeatureMap:
    return FeatureMap(small_settings())


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return synthetic_images(70, 16, 1, seed=7).astype(np.float32) / 255


def test_a_seed_means_the_same_images():
    first, again = (synthetic_images(3, 16, 3, seed=4) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, synthetic_images(3, 16, 3, seed=5))
    # A stream that changed would show here; rounding moves a mean far less.
    assert abs(float(synthetic_images(40, 16, 1, seed=0).mean()) - STORED_MEAN) < 0.05


STORED_MEAN = 104.20126953125


def test_half_of_the_images_have_a_dark_ground():
    corners = synthetic_images(400, 16, 1, seed=0)[:, 0, 0, 0]
    assert 0.25 < (corners < 8).mean() < 0.65


def test_features_do_not_depend_on_other_images_or_on_places(made, images):
    whole = made.integers(images)
    for place in (0, 1, 63, 64, 69):  # the last block is filled up
        alone = made.integers(images[place : place + 1])
        assert np.array_equal(alone[0], whole[place])
    order = np.random.default_rng(0).permutation(len(images))
    assert np.array_equal(made.integers(images[order]), whole[order])


def test_rows_have_norm_one(made, images):
    norms = np.linalg.norm(made.integers(images).astype(float), axis=1)
    assert np.allclose(norms, 2.0**FEATURE_BITS, rtol=1e-3)


def test_the_number_of_threads_changes_nothing(made, images):
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(made.integers(images))
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(*found)


def test_the_self_test_finds_a_product_that_mixes_rows(made, monkeypatch):
    assert "64 places" in made.self_test()
    right = FeatureMap._projected

    def mixing(self, block):
        return right(self, np.nan_to_num(block) + np.nan_to_num(block).mean() * 1e-2)

    monkeypatch.setattr(FeatureMap, "_projected", mixing)
    with pytest.raises(ArithmeticError, match="depend on other images"):
        made.self_test()


def test_the_self_test_finds_a_product_that_depends_on_the_place(made, monkeypatch):
    right = FeatureMap._projected

    def placed(self, block):
        return right(self, block) + np.arange(len(block), dtype=np.int16)[:, None] // 63

    monkeypatch.setattr(FeatureMap, "_projected", placed)
    with pytest.raises(ArithmeticError, match="depend on other images"):
        made.self_test()


@pytest.mark.parametrize("channels", [1, 3])
def test_mirror_images_have_the_same_features_where_it_was_asked(channels):
    images = synthetic_images(8, 16, channels, seed=3).astype(np.float32) / 255
    flipped = np.ascontiguousarray(images[..., ::-1])
    for mirror in (True, False):
        made = FeatureMap(small_settings(channels=channels, mirror=mirror))
        off = made.integers(images) / 2**14 - made.integers(flipped) / 2**14
        if mirror:
            assert np.abs(off).max() < 2e-3  # float32 adds in another order
        else:
            assert np.median(np.linalg.norm(off, axis=1)) > 0.2


def test_blurred_cells_fade_out_over_so_many_widths():
    weights = np.array([1.0, 2, 3, 4, 5, 4, 3, 2, 1]) / 25  # to zero 5 places away
    middle = pooling(9, 3, 2.0).numpy()[4]
    assert np.allclose(middle, np.outer(weights, weights).ravel())


@pytest.mark.parametrize("places, grid", [(23, 3), (21, 2), (27, 3), (5, 5)])
def test_cells_without_a_blur_have_the_places_that_lie_in_them(places, grid):
    means = np.zeros((grid, places))
    for cell in range(grid):
        first, last = cell * places // grid, -(-(cell + 1) * places // grid)
        means[cell, first:last] = 1 / (last - first)
    assert np.allclose(pooling(places, grid, 0.0).numpy(), np.kron(means, means))


@given(st.integers(5, 40), st.integers(1, 5), st.floats(0, 3))
def test_pooling_takes_means_that_cover_everything(places, grid, blur):
    cells = pooling(places, grid, blur).numpy()
    assert np.allclose(cells.sum(axis=1), 1.0, atol=1e-5)
    assert (cells.sum(axis=0) > 0).all()


def test_responses_are_those_of_normalized_patches(made):
    """Filters and box sums against patches that are normalized one by one."""
    image = synthetic_images(1, 16, 1, seed=9).astype(np.float32)[0] / 255
    filters = made._filters[0]
    size = filters.bank.patch
    places = 16 - size + 1
    response = np.empty((places * places, filters.weights.shape[1]))
    for row in range(places):
        for column in range(places):
            patch = image[:, row : row + size, column : column + size].ravel()
            patch = patch.astype(np.float64) - patch.mean(dtype=np.float64)
            patch /= np.sqrt(patch.var() + features.CONTRAST)
            response[row * places + column] = patch @ filters.weights.numpy()
    pool, bar = filters.pool.numpy(), features.THRESHOLD
    pooled = [pool @ np.maximum(side * response - bar, 0) for side in (1, -1)]
    expected = np.sqrt(np.stack(pooled)).ravel()
    expected /= np.linalg.norm(expected)
    found = filters.features(torch.from_numpy(image)[None] - 0.5).numpy()
    assert np.abs(found - expected).max() < 2e-3


def test_the_basis_scales_variances_as_eigenvectors_would():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 12)) * np.geomspace(1, 0.01, 12)
    found = basis(rows.astype(np.float32), 12)
    centered = rows - rows.mean(axis=0)
    centered /= np.linalg.norm(centered, axis=1, keepdims=True)
    second = centered.T @ centered / len(rows)
    # B B' does not depend on the rotation of the basis.
    expected = inverse_root(second, BASIS)
    assert np.allclose(found @ found.T, expected @ expected, rtol=2e-2, atol=1e-2)


def test_a_few_components_are_the_main_ones():
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(300, 40)) * np.r_[np.full(5, 1.0), np.full(35, 0.01)]
    found = basis(rows.astype(np.float32), 5)
    assert found.shape == (40, 5)
    assert np.linalg.norm(found[5:]) < 0.1 * np.linalg.norm(found[:5])


def test_another_rounding_of_the_images_changes_features_little():
    settings = small_settings()
    made = FeatureMap(settings)
    rows = np.random.default_rng(0).random((200, 30)).astype(np.float32)
    noisy = rows * (1 + 1e-6 * np.random.default_rng(1).normal(size=rows.shape))
    first, second = basis(rows, 10), basis(noisy.astype(np.float32), 10)
    assert np.linalg.norm(first - second) < 1e-2 * np.linalg.norm(first)
    assert made.fingerprint.shape == (4, made.size)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"side": 4}, "side"),
        ({"channels": 2}, "channels"),
        ({"components": 0}, "2"),
        ({"blur": -0.5}, "blur >= 0"),
        ({"blur": "wide"}, "blur"),
    ],
)
def test_settings_are_checked(wrong, words):
    with pytest.raises(ValueError, match=words):
        FeatureSettings(**{"side": 16, **wrong})


def test_features_stand_in_front_of_any_module():
    images = synthetic_images(5, 16, 1, seed=3) / 255.0
    images[2, 0, 4, 4] = np.nan
    found = armijo.features(images, settings=small_settings())
    assert np.isnan(found[2]).all()
    rest = np.delete(found, 2, axis=0)
    assert np.allclose(np.linalg.norm(rest, axis=1), 1, atol=0.01)
    alone = armijo.features(images[3:4], settings=small_settings())
    assert np.array_equal(alone[0], found[3])
    with pytest.raises(ValueError, match="at least 8 x 8"):
        armijo.features(np.zeros((3, 1, 1)))


def test_a_rule_for_mirror_images_is_true_or_false():
    with pytest.raises(ValueError, match="mirror True or False, got 'no'"):
        settings_for(Pictures(np.zeros((2, 16, 16))), "no")
