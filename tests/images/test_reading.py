# SPDX-License-Identifier: Apache-2.0
"""Layouts, types and files of images become one form; what is wrong is a blank."""

import gzip
import os
import warnings
from collections import deque

import numpy as np
import pytest
import torch
from PIL import Image

from armijo.errors import TableError
from armijo.images.reading import Pictures, load_images, read_idx
from tests.images.doubles import stripes


@pytest.mark.parametrize("kind", [list, tuple, deque])
def test_no_image_decides_the_type_of_the_others(kind):
    images, _ = stripes(4)
    given = kind([*images[:3], images[3].astype(float)])
    with pytest.raises(ValueError, match=r"as one array .*, got (list|tuple|deque)"):
        Pictures(given)


def test_what_is_no_array_is_refused_in_words():
    with pytest.raises(ValueError, match="got Tensor"):
        Pictures(torch.zeros(2, 16, 16, requires_grad=True))
    with pytest.raises(ValueError, match="side <= 256"):
        Pictures(np.zeros((2, 16, 16)), side=10**6)
    with pytest.raises(ValueError, match="side >= 16"):
        Pictures(np.zeros((2, 16, 16)), side=8)


def test_wide_numbers_of_files_keep_their_light(tmp_path):
    (tmp_path / "a").mkdir()
    light = np.linspace(0, 1, 256).reshape(16, 16)
    for name, pixels in {
        "0.png": np.rint(light * 255).astype(np.uint8),
        "1.png": np.rint(light * 65535).astype(np.uint16),
        "2.tif": light.astype(np.float32),
    }.items():
        Image.fromarray(pixels).save(tmp_path / "a" / name)
    found = load_images(tmp_path, size=(16, 16), gray=True)
    assert found.readable.all()
    assert np.abs(np.diff(found.images.astype(int), axis=0)).max() <= 1


def test_no_content_of_a_file_shows(tmp_path, capfd):
    """Not on standard error, not by a program that is started, not by waiting."""
    folder = tmp_path / "a"
    folder.mkdir()
    image = Image.fromarray(np.arange(256, dtype=np.uint8).reshape(16, 16))
    image.save(folder / "0.tif", compression="tiff_deflate")
    damaged = bytearray((folder / "0.tif").read_bytes())
    damaged[12:40] = bytes(28)
    (folder / "0.tif").write_bytes(damaged)
    image.save(tmp_path / "page.eps")
    (tmp_path / "page.eps").rename(folder / "1.png")
    os.mkfifo(folder / "2.png")
    (folder / "3.png").symlink_to("x" * 300)
    Image.fromarray(np.full((16, 16), np.nan, dtype=np.float32)).save(folder / "4.tif")
    with warnings.catch_warnings(action="error"):
        found = load_images(tmp_path)
    assert not found.readable.any()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("kind", ["empty", "one array", "damaged"])
def test_files_that_are_no_npz_are_refused_in_words(tmp_path, kind):
    path = tmp_path / "a.npz"
    if kind == "one array":
        np.save(tmp_path / "a.npy", np.zeros(3))
        (tmp_path / "a.npy").rename(path)
    elif kind == "empty":
        path.touch()
    else:
        np.savez_compressed(path, x=np.arange(9999.0), y=np.zeros(3))
        data = bytearray(path.read_bytes())
        data[200:400] = b"\xff" * 200
        path.write_bytes(data)
    with pytest.raises(TableError, match=r"cannot be read as an \.npz file"):
        load_images(path)


def test_three_layouts_are_the_same_images():
    images = np.random.default_rng(0).integers(0, 256, (4, 20, 24, 3), dtype=np.uint8)
    last, first = Pictures(images), Pictures(images.transpose(0, 3, 1, 2))
    assert np.array_equal(last[:], first[:])
    assert last.channels == 3
    gray = Pictures(images[..., 0])
    assert np.array_equal(gray[:], Pictures(images[..., :1])[:])


def test_bytes_and_floats_are_the_same_images():
    images, _ = stripes(3)
    assert np.allclose(Pictures(images)[:], Pictures(images / 255.0)[:], atol=1e-6)
    assert Pictures(images / 255.0 * 3 - 1)[:].max() <= 1
    assert Pictures(images / 255.0 * 3 - 1)[:].min() >= 0


@pytest.mark.parametrize(
    ("size", "side"), [((28, 28), 28), ((8, 8), 16), ((256, 64), 32), ((17, 40), 26)]
)
def test_images_are_resized_each_alone(size, side):
    images = np.random.default_rng(0).random((5, *size))
    found = Pictures(images)[:]
    assert found.shape == (5, 1, side, side)
    assert np.array_equal(Pictures(images[2:3])[:][0], found[2])
    assert abs(found.mean() - images.mean()) < 0.02


def test_an_image_that_is_not_finite_is_a_blank():
    images = np.random.default_rng(0).random((4, 16, 16))
    images[1, 3, 3], images[2, 0, 0] = np.nan, np.inf
    pictures = Pictures(images)
    assert pictures.known().tolist() == [True, False, False, True]
    assert np.isfinite(pictures[:]).all()
    assert not pictures[:][1:3].any()


@pytest.mark.parametrize(
    ("images", "words"),
    [
        (np.zeros((5, 1, 1)), "8 x 8 pixels"),
        (np.zeros((5, 16)), "shape"),
        (np.zeros((5, 16, 16, 4)), "three channels"),
        (np.zeros((5, 3, 16, 3)), "three channels"),
        (np.array(["a", "b"]), "array of numbers"),
    ],
)
def test_what_is_public_is_refused(images, words):
    with pytest.raises(ValueError, match=words) as caught:
        Pictures(images)
    assert "Nothing was spent" in str(caught.value)


def write_folder(path, count=6, side=16):
    images, y = stripes(count, side)
    for place, (image, label) in enumerate(zip(images, y, strict=True)):
        inner = path / ("upright" if label else "level")
        inner.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(inner / f"{place}.png")
    return images, y


def test_a_folder_has_a_folder_for_each_class(tmp_path):
    write_folder(tmp_path)
    (tmp_path / "level" / "broken.png").write_bytes(b"no image")
    (tmp_path / "level" / "notes.txt").write_text("not read")
    found = load_images(tmp_path)
    assert found.images.shape == (7, 32, 32, 3)
    assert set(found.labels) == {"level", "upright"}
    assert [found.names[k] for k in np.flatnonzero(~found.readable)] == [
        "level/broken.png"
    ]
    assert load_images(tmp_path, gray=True).images.shape == (7, 32, 32, 1)


def test_a_file_of_another_size_than_the_declared_one_is_a_blank(tmp_path):
    write_folder(tmp_path)
    Image.fromarray(np.zeros((20, 16), np.uint8)).save(tmp_path / "level" / "tall.png")
    found = load_images(tmp_path, size=(16, 16), gray=True)
    assert found.readable.sum() == 6
    assert not found.images[~found.readable].any()
    images, _ = stripes(6)
    kept = found.images[found.readable][..., 0]
    assert sorted(map(bytes, kept)) == sorted(map(bytes, images))


def test_npz_and_idx_files(tmp_path):
    images, y = stripes(5)
    np.savez(tmp_path / "a.npz", images=images, labels=y)
    found = load_images(tmp_path / "a.npz")
    assert np.array_equal(found.images, images)
    assert np.array_equal(found.labels, y)

    def idx(array):
        sizes = np.array(array.shape, ">u4").tobytes()
        return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()

    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(images)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
    found = load_images(path)
    assert np.array_equal(found.images, images)
    assert np.array_equal(found.labels, y)
    path.write_bytes(gzip.compress(idx(images))[:50])
    with pytest.raises(TableError, match="IDX"):
        read_idx(path)


def test_files_that_are_no_images_are_refused(tmp_path):
    with pytest.raises(TableError, match="found nothing"):
        load_images(tmp_path / "missing")
    with pytest.raises(TableError, match="folder for each class"):
        load_images(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"no archive")
    with pytest.raises(TableError, match="cannot be read"):
        load_images(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", other=np.zeros(3))
    with pytest.raises(TableError, match="found \\['other'\\]"):
        load_images(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", x=np.zeros((3, 16, 16)), y=np.zeros(2))
    with pytest.raises(TableError, match=r"^Expected as many labels as images"):
        load_images(tmp_path / "c.npz")
    (tmp_path / "t.csv").write_text("1,2")
    with pytest.raises(TableError, match="a folder"):
        load_images(tmp_path / "t.csv")
    (tmp_path / "x-idx3").write_bytes(b"")
    with pytest.raises(TableError, match="labels of"):
        load_images(tmp_path / "x-idx3")


def test_binary_files_of_cifar(tmp_path):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (6, 3073), dtype=np.uint8)
    for number in (1, 2):
        part = records[3 * number - 3 : 3 * number]
        (tmp_path / f"data_batch_{number}.bin").write_bytes(part.tobytes())
    found = load_images(tmp_path)
    assert found.images.shape == (6, 3, 32, 32)
    assert np.array_equal(found.labels, records[:, 0])
    assert np.array_equal(found.images[4].reshape(-1), records[4, 1:])
    one = load_images(tmp_path / "data_batch_2.bin")
    assert np.array_equal(one.images, found.images[3:])
    for wrong in (b"", b"x" * 3072):
        (tmp_path / "wrong.bin").write_bytes(wrong)
        with pytest.raises(TableError, match="records of 3073 bytes"):
            load_images(tmp_path / "wrong.bin")


@pytest.mark.filterwarnings("error")
def test_no_warning_tells_of_an_image(tmp_path):
    X = np.full((3, 16, 16), 0.5)
    X[1, 2, 3], X[2, 0, 0] = 1e300, np.inf
    found = Pictures(X)[0:3]
    assert found[1].max() == 1.0 and (found[1] == 0.5).sum() == 255  # cut, not blank
    assert Pictures(X).known().tolist() == [True, True, False] and not found[2].any()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    palette = Image.new("P", (16, 16))
    palette.info["transparency"] = bytes(range(16))
    palette.save(tmp_path / "a" / "palette.png", transparency=bytes(range(16)))
    Image.new("L", (9500, 9500)).save(tmp_path / "b" / "large.png")
    assert load_images(tmp_path).readable.all()
