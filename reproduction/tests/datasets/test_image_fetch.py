# SPDX-License-Identifier: Apache-2.0
"""Images from a publisher on this machine, by the functions and by the commands."""

import dataclasses
import gzip
import hashlib
import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from typer.testing import CliRunner

from armijo_reproduction.__main__ import app
from armijo_reproduction.datasets import (
    DATASETS,
    DatasetError,
    available,
    check,
    encodings,
    fetch,
    files,
    find,
    load,
)
from reproduction.tests.datasets.test_images import cifar_batch, idx_file

ARCHIVE = "cifar-10-binary.tar.gz"
N_TRAIN, N_TEST = 6, 4


def _sha256(data):
    return hashlib.sha256(data).hexdigest()


def _register(monkeypatch, name, contents, **changes):
    """Give a dataset other contents, found only in the cache and on the mirror."""
    entry = DATASETS[name]
    files = tuple(
        dataclasses.replace(file, folders=(f"test-{name}",), sha256=_sha256(content))
        for file, content in zip(entry.files, contents, strict=True)
    )
    monkeypatch.setitem(
        DATASETS, name, dataclasses.replace(entry, files=files, **changes)
    )


@pytest.fixture
def mirror(publisher, cache_folder, monkeypatch):
    monkeypatch.setenv("ARMIJO_MIRROR", publisher.url)
    return publisher


@pytest.fixture(params=["mnist", "fashion-mnist"])
def digits(request, mirror, monkeypatch):
    """Ten images in the idx format, served gzipped; returns the dataset's name."""
    rng = np.random.default_rng(1)
    contents = []
    for n in (N_TRAIN, N_TEST):
        contents.append(idx_file(rng.integers(0, 256, (n, 28, 28))))
        contents.append(idx_file(rng.integers(0, 10, n)))
    sizes = {"n_rows": N_TRAIN + N_TEST, "n_train": N_TRAIN}
    _register(monkeypatch, request.param, contents, **sizes)
    for file, content in zip(DATASETS[request.param].files, contents, strict=True):
        page = gzip.compress(content, mtime=0)
        mirror.pages[f"/test-{request.param}/{file.name}.gz"] = page
    return request.param


def _tar_gz(members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


@pytest.fixture
def photos(mirror, monkeypatch):
    """Six batches of ten images in one archive; returns their contents by name."""
    names = [file.name for file in DATASETS["cifar-10"].files]
    batches = {
        name: cifar_batch([*range(9, -1, -1)], seed) for seed, name in enumerate(names)
    }
    contents = list(batches.values())
    _register(monkeypatch, "cifar-10", contents, n_rows=60, n_train=50)
    monkeypatch.setattr(encodings, "SUBSET_TRAIN_PER_CLASS", 2)
    monkeypatch.setattr(encodings, "SUBSET_TEST_PER_CLASS", 1)
    subset = encodings.cifar_subset(contents)
    _register(monkeypatch, "cifar-10-subset", subset, n_rows=30, n_train=20)
    mirror.pages[f"/test-cifar-10/{ARCHIVE}"] = _tar_gz(batches)
    return batches


def _run(*words):
    return CliRunner().invoke(app, ["datasets", *words])


def _names(folder):
    return {p.name for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"}


def test_digits_are_downloaded_verified_and_split(digits, mirror):
    paths = fetch(digits)
    names = [file.name for file in DATASETS[digits].files]
    assert [path.name for path in paths] == [f"{name}.gz" for name in names]
    assert len(mirror.requests) == 4
    data = load(digits, download=False)
    train, test = data.published_split()
    assert train.X.shape == (N_TRAIN, 1, 28, 28) and len(test.y) == N_TEST
    assert [status.state for status in check(digits)] == ["verified"] * 4
    assert len(mirror.requests) == 4


def test_commands_for_digits(digits):
    here = {
        row["name"]: row
        for row in json.loads(_run("list", "--json").stdout)["datasets"]
    }
    assert here[digits]["here"] is False and here[digits]["shape"] == [1, 28, 28]
    assert here[digits]["train_rows"] == N_TRAIN
    fetched = _run("fetch", digits, "--json")
    assert fetched.exit_code == 0 and len(json.loads(fetched.stdout)["files"]) == 4
    checked = _run("check", digits, "--json")
    assert checked.exit_code == 0 and json.loads(checked.stdout)["complete"] is True
    assert "verified" in _run("check", digits).stdout
    assert f"{digits} " in _run("list").stdout


def test_downloads_have_bars_and_files_that_are_there_have_none(digits):
    assert _run("fetch", digits).stderr.count("100%") >= 4
    assert "%" not in _run("fetch", digits).stderr


def test_a_damaged_file_is_found_by_check_and_replaced_by_fetch(digits, mirror):
    damaged = fetch(digits)[2]
    damaged.write_bytes(damaged.read_bytes()[:-5])
    result = _run("check", digits, "--json")
    assert result.exit_code == 2
    found = json.loads(result.stdout)
    assert found["complete"] is False
    assert sum("damaged" in line for line in found["files"]) == 1
    with pytest.raises(DatasetError, match="truncated or damaged"):
        load(digits)
    fetch(digits)
    assert {status.state for status in check(digits)} == {"verified"}
    assert len(mirror.requests) == 5


def test_one_archive_serves_all_batches(photos, mirror, cache_folder):
    paths = fetch("cifar-10")
    assert {path.name for path in paths} == {ARCHIVE} and len(paths) == 6
    assert mirror.requests == [f"/test-cifar-10/{ARCHIVE}"]
    assert _names(cache_folder) == {ARCHIVE}
    data = load("cifar-10", download=False)
    train, test = data.published_split()
    assert train.X.shape == (50, 3, 32, 32) and len(test.y) == 10
    assert np.array_equal(data.X, encodings.cifar(list(photos.values())).X)


@pytest.mark.parametrize("packing", [lambda b: b, gzip.compress])
def test_unpacked_batches_are_found(photos, tmp_path, packing, monkeypatch):
    monkeypatch.setenv("ARMIJO_DATA", str(tmp_path))
    (tmp_path / "test-cifar-10").mkdir()
    for name, batch in photos.items():
        ending = "" if packing(batch) == batch else ".gz"
        (tmp_path / "test-cifar-10" / f"{name}{ending}").write_bytes(packing(batch))
    assert {path.parent.parent for path in find("cifar-10")} == {tmp_path}
    assert load("cifar-10", download=False).X.shape == (60, 3, 32, 32)


def test_an_archive_with_one_wrong_batch_is_refused(
    photos, mirror, cache_folder, tmp_path
):
    wrong = _tar_gz(photos | {"data_batch_4.bin": cifar_batch([0] * 10)})
    mirror.pages[f"/test-cifar-10/{ARCHIVE}"] = wrong
    own = tmp_path / "own.tar.gz"
    own.write_bytes(wrong)
    for own_file in (None, own):
        with pytest.raises(DatasetError, match=r"to hold data_batch_4\.bin"):
            fetch("cifar-10", own_file=own_file)
        assert _names(cache_folder) == set()


def test_an_archive_damaged_in_its_last_batch_is_replaced(photos, mirror):
    path = fetch("cifar-10")[0]
    path.write_bytes(_tar_gz(photos | {"test_batch.bin": b"x"}))
    states = [status.state for status in check("cifar-10")]
    assert states == ["verified"] * 5 + ["damaged"]
    fetch("cifar-10")
    assert {status.state for status in check("cifar-10")} == {"verified"}
    assert len(mirror.requests) == 2


def test_the_users_own_archive_is_taken(photos, mirror, tmp_path):
    own = tmp_path / "download (2)"
    own.write_bytes(mirror.pages[f"/test-cifar-10/{ARCHIVE}"])
    result = _run("fetch", "cifar-10", "--file", str(own), "--json")
    assert result.exit_code == 0 and mirror.requests == []
    assert load("cifar-10", download=False).y.shape == (60,)


class _Trap:
    """Pickled, it would tell of being unpickled."""

    def __reduce__(self):
        return pytest.fail, ("a download was unpickled",)


@pytest.mark.parametrize("ending", ["", ".bin"])
def test_the_pickled_version_is_refused_unread(photos, tmp_path, ending):
    own = tmp_path / "cifar-10-python.tar.gz"
    trap = pickle.dumps(_Trap())
    own.write_bytes(
        _tar_gz({name.removesuffix(".bin") + ending: trap for name in photos})
    )
    with pytest.raises(DatasetError, match="is no file of cifar-10"):
        fetch("cifar-10", own_file=own)
    assert not available("cifar-10")


def test_the_subset_is_cut_from_the_whole_and_verified(photos, mirror, cache_folder):
    with pytest.raises(DatasetError, match="datasets fetch cifar-10-subset"):
        load("cifar-10-subset", download=False)
    assert _run("fetch", "cifar-10-subset").exit_code == 0
    assert len(mirror.requests) == 1
    assert _names(cache_folder) == {ARCHIVE, "subset_train.bin", "subset_test.bin"}
    data = load("cifar-10-subset", download=False)
    train, test = data.published_split()
    assert np.bincount(train.y).tolist() == [2] * 10
    assert np.bincount(test.y).tolist() == [1] * 10
    whole = load("cifar-10", download=False)
    assert np.array_equal(train.X, whole.X[:20]) and np.array_equal(
        test.X, whole.X[50:]
    )


def test_another_subset_is_refused(photos, monkeypatch, cache_folder):
    monkeypatch.setattr(encodings, "SUBSET_TEST_PER_CLASS", 0)
    with pytest.raises(DatasetError, match=r"made for subset_test\.bin"):
        fetch("cifar-10-subset")
    assert not available("cifar-10-subset")


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_published_files_pass_through_the_whole_path(
    name, publisher, tmp_path, monkeypatch
):
    paths = find(name)
    if paths is None or any(path.suffix != ".gz" for path in paths):
        pytest.skip(f"the original files of {name} are not on this machine")
    for path in paths:
        publisher.pages[f"/{name}/{path.name}"] = path.read_bytes()
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("ARMIJO_MIRROR", publisher.url)
    monkeypatch.setattr(files, "search_roots", lambda: (tmp_path,))
    monkeypatch.setattr(files, "cache_root", lambda: tmp_path)
    fetched = fetch(name)
    assert len(publisher.requests) == 4
    assert all(tmp_path in path.parents for path in fetched)
    assert {status.state for status in check(name)} == {"verified"}
