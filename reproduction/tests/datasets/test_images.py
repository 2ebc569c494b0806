# SPDX-License-Identifier: Apache-2.0
"""Images as torch takes them: formats by hand, and the published files if here."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from armijo_reproduction.datasets import DATASETS, DatasetError, encodings, files
from reproduction.tests.datasets.conftest import loaded

# Shape of an image, training rows, test rows, and the first labels of both.
KNOWN = {
    "mnist": ((1, 28, 28), 60_000, 10_000, [5, 0, 4, 1, 9], [7, 2, 1, 0, 4]),
    "fashion-mnist": ((1, 28, 28), 60_000, 10_000, [9, 0, 0, 3, 0], [9, 2, 1, 1, 6]),
    "cifar-10": ((3, 32, 32), 50_000, 10_000, [6, 9, 9, 4, 1], [3, 8, 8, 0, 6]),
    "cifar-10-subset": ((3, 32, 32), 10_000, 2_000, [6, 9, 9, 4, 1], [3, 8, 8, 0, 6]),
}
# Means of the channels over the training images, to the digits usually quoted.
MEANS = {
    "mnist": ([0.1307], 1e-4),
    "fashion-mnist": ([0.2860], 1e-4),
    "cifar-10": ([0.4914, 0.4822, 0.4465], 1e-4),
    # A fifth of the images; two standard errors of a mean are 0.0026 or less.
    "cifar-10-subset": ([0.4914, 0.4822, 0.4465], 3e-3),
}
MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


@pytest.mark.parametrize("name", KNOWN)
def test_published_images(name):
    data = loaded(name)
    shape, n_train, n_test, first_train, first_test = KNOWN[name]
    assert data.X.shape == (n_train + n_test, *shape) and data.n_train == n_train
    assert data.X.dtype == np.float32 and data.y.dtype == np.int64
    assert data.X.flags.c_contiguous and data.X.flags.writeable
    assert data.X.min() == 0 and data.X.max() == 1
    train, test = data.published_split()
    assert len(train.y) == n_train and len(test.y) == n_test
    assert train.y[:5].tolist() == first_train and test.y[:5].tolist() == first_test
    expected = MNIST_COUNTS if name == "mnist" else [n_train // 10] * 10
    assert np.bincount(train.y).tolist() == expected
    means = train.X.mean(axis=(0, 2, 3), dtype=np.float64)
    assert means == pytest.approx(MEANS[name][0], abs=MEANS[name][1])


@pytest.mark.parametrize("name", KNOWN)
def test_neighboring_pixels_are_alike_in_both_directions(name):
    X = loaded(name).X[:500]
    for axis in (2, 3):
        apart = np.abs(np.diff(X, axis=axis)).mean()
        shuffled = np.abs(X - np.roll(X, X.shape[axis] // 2, axis=axis)).mean()
        assert apart < shuffled / 2


def test_the_subset_is_what_is_cut_from_the_whole():
    loaded("cifar-10")
    loaded("cifar-10-subset")
    whole, part = (_contents(name) for name in ("cifar-10", "cifar-10-subset"))
    assert list(encodings.cifar_subset(whole)) == part


def test_the_published_subset_holds_all_that_can_be_cut_from_it():
    loaded("cifar-10-subset")
    train, test = _contents("cifar-10-subset")
    half = len(train) // 2
    assert encodings.cifar_subset((train[:half], train[half:], test)) == (train, test)


def _contents(name):
    listed = DATASETS[name].files
    return [files.read(file, files.locate(file)) for file in listed]


def test_the_subset_is_not_called_cifar_10():
    entry = DATASETS["cifar-10-subset"]
    assert "fifth of" in entry.summary and "do not compare" in entry.summary
    assert entry.files[0].folders[0] != DATASETS["cifar-10"].files[0].folders[0]
    assert entry.n_rows == 12_000


def idx_file(array):
    """Return an array of bytes in the idx format."""
    header = bytes([0, 0, 8, array.ndim])
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return header + sizes + array.astype(np.uint8).tobytes()


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_idx_files_give_their_arrays_back(shape, seed):
    array = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(encodings.idx(idx_file(array)), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got nothing"),
        (b"\x00\x00\x08", "got 00 00 08"),
        (b"\x80\x04\x95\x10", "got 80 04 95 10"),  # how a pickle begins
        (b"\x00\x00\x0d\x01\x00\x00\x00\x00", "unsigned bytes"),
        (b"\x00\x00\x08\x02\x00\x00\x00\x01", "header of 12 bytes, got 8"),
        (idx_file(np.zeros((2, 3)))[:-1], r"18 bytes .* \(2, 3\), got 17"),
        (idx_file(np.zeros((2, 3))) + b"x", r"18 bytes .* \(2, 3\), got 19"),
        (b"\x00\x00\x08\x03" + b"\xff" * 12, r"\(4294967295, .* got 16"),
    ],
)
def test_other_bytes_are_no_idx_file(content, message):
    with pytest.raises(DatasetError, match=message):
        encodings.idx(content)


def _mnist_files(n_train=3, n_test=2):
    rng = np.random.default_rng(0)
    contents = []
    for n in (n_train, n_test):
        contents.append(rng.integers(0, 256, (n, 28, 28)))
        contents.append(rng.integers(0, 10, n))
    return contents


def test_mnist_rows_by_hand():
    arrays = _mnist_files()
    arrays[0][0, 0, :3] = 0, 51, 255
    table = encodings.mnist([idx_file(array) for array in arrays])
    assert table.X.shape == (5, 1, 28, 28) and table.feature_names == ()
    assert table.X[0, 0, 0, :3].tolist() == [0, np.float32(0.2), 1]
    pixels = np.concatenate([arrays[0], arrays[2]])
    assert np.array_equal(np.rint(table.X[:, 0] * 255), pixels)
    assert table.y.tolist() == [*arrays[1], *arrays[3]]


def test_mnist_is_ready_for_torch():
    table = encodings.mnist([idx_file(array) for array in _mnist_files()])
    X, y = torch.from_numpy(table.X), torch.from_numpy(table.y)
    assert X.dtype == torch.float32 and y.dtype == torch.int64
    assert torch.nn.Conv2d(1, 2, 3)(X).shape == (5, 2, 26, 26)
    assert torch.nn.functional.cross_entropy(torch.zeros(5, 10), y).isfinite()


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_mnist_with_parts_that_do_not_fit_is_refused(which):
    arrays = _mnist_files()
    arrays[which] = arrays[which][:-1]
    with pytest.raises(DatasetError, match="one label for each"):
        encodings.mnist([idx_file(array) for array in arrays])


def test_images_in_place_of_labels_are_refused():
    arrays = _mnist_files()
    with pytest.raises(DatasetError, match="one label for each"):
        encodings.mnist([idx_file(arrays[i]) for i in (1, 0, 3, 2)])


def test_labels_above_nine_are_refused():
    arrays = _mnist_files()
    arrays[3][-1] = 10
    with pytest.raises(DatasetError, match="from 0 to 9, got 10"):
        encodings.mnist([idx_file(array) for array in arrays])
    with pytest.raises(DatasetError, match="from 0 to 9, got 10"):
        encodings.cifar([bytes([10]) + bytes(3072)])


def cifar_batch(labels, seed=0):
    """Return records with these labels and random pixels."""
    rng = np.random.default_rng(seed)
    records = rng.integers(0, 256, (len(labels), 3073), dtype=np.uint8)
    records[:, 0] = labels
    return records.tobytes()


def test_cifar_records_by_hand():
    red, green, blue = bytes([255]) * 1024, bytes([51]) * 1024, bytes(range(256)) * 4
    table = encodings.cifar([b"\x03" + red + green + blue, cifar_batch([9])])
    assert table.X.shape == (2, 3, 32, 32) and table.X.dtype == np.float32
    assert table.y.tolist() == [3, 9] and table.y.dtype == np.int64
    assert (table.X[0, 0] == 1).all() and (table.X[0, 1] == np.float32(0.2)).all()
    # Row-major: the second row of blue goes on where the first one ends.
    assert np.rint(table.X[0, 2, 1, :2] * 255).tolist() == [32, 33]
    assert torch.from_numpy(table.X).is_contiguous()


@pytest.mark.parametrize("content", [b"", bytes(3072), bytes(3074)])
def test_other_bytes_are_no_cifar_records(content):
    with pytest.raises(DatasetError, match="records of 3073 bytes"):
        encodings.cifar([content])


def test_the_subset_takes_the_first_of_every_class_in_their_order(monkeypatch):
    monkeypatch.setattr(encodings, "SUBSET_TRAIN_PER_CLASS", 2)
    monkeypatch.setattr(encodings, "SUBSET_TEST_PER_CLASS", 1)
    batches = cifar_batch([7, 1, 7, 1]), cifar_batch([7, 0, 1], 1), cifar_batch([2, 2])
    train, test = encodings.cifar_subset(batches)
    whole = batches[0] + batches[1]
    assert train == whole[: 4 * 3073] + whole[5 * 3073 : 6 * 3073]
    assert test == batches[2][:3073]
