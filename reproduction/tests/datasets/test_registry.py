# SPDX-License-Identifier: Apache-2.0
"""Datasets by name: found, fetched, checked, and refused with a reason."""

import dataclasses
import hashlib

import numpy as np
import pytest

from armijo_reproduction.datasets import (
    DATASETS,
    DataFile,
    DatasetError,
    available,
    check,
    fetch,
    find,
    load,
)
from reproduction.tests.datasets.conftest import FOLDER

IPUMS_BR, IPUMS_US = DATASETS["ipums-br"], DATASETS["ipums-us"]
ROWS = b"0 1 0\n5 3 1\n2 2 1\n"


@pytest.fixture
def small(publisher, cache_folder, monkeypatch):
    """A dataset of three rows that the publisher serves."""
    publisher.pages["/rows.dat"] = ROWS
    file = DataFile(
        name="rows.dat",
        folders=(FOLDER,),
        sha256=hashlib.sha256(ROWS).hexdigest(),
        urls=(f"{publisher.url}/{{name}}",),
    )
    _register(monkeypatch, IPUMS_BR, files=(file,), how_to_obtain=None)
    return file


def _register(monkeypatch, entry, **changes):
    changes = {"name": "small", "n_rows": 3, "row_shape": (2,)} | changes
    monkeypatch.setitem(DATASETS, "small", dataclasses.replace(entry, **changes))


def _withheld(monkeypatch, entry):
    """Put a dataset that cannot be downloaded where no file of it can be found."""
    file = dataclasses.replace(
        entry.files[0],
        folders=(FOLDER,),
        sha256=entry.files[0].sha256 and hashlib.sha256(ROWS).hexdigest(),
    )
    _register(monkeypatch, entry, files=(file,))


def test_load_downloads_verifies_and_encodes(small, publisher):
    assert not available("small") and find("small") is None
    assert [s.state for s in check("small")] == ["missing"]
    data = load("small")
    assert np.array_equal(data.X, [[0, 0], [1, 1], [0.4, 0.5]])
    assert available("small") and find("small")[0].read_bytes() == ROWS
    assert [s.state for s in check("small")] == ["verified"]
    load("small")
    assert len(publisher.requests) == 1


def test_load_without_download_says_how(small, publisher):
    with pytest.raises(DatasetError, match="datasets fetch small"):
        load("small", download=False)
    assert publisher.requests == []


def test_a_damaged_file_is_said_and_only_fetch_replaces_it(small, publisher):
    (path,) = fetch("small")
    path.write_bytes(ROWS[:-1])
    (status,) = check("small")
    assert status.state == "damaged" and status.path == path
    assert small.sha256 in status.detail
    with pytest.raises(DatasetError, match="Remove it or put the right file there"):
        load("small")
    assert len(publisher.requests) == 1
    assert fetch("small") == (path,) and path.read_bytes() == ROWS


def test_a_damaged_file_of_the_user_is_not_touched(small, tmp_path):
    theirs = tmp_path / "data" / FOLDER / "rows.dat"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"damaged")
    with pytest.raises(DatasetError, match="Remove it or put the right file there"):
        fetch("small")
    assert theirs.read_bytes() == b"damaged"


@pytest.mark.parametrize("entry", [IPUMS_BR, IPUMS_US])
def test_what_may_not_be_redistributed_is_explained(entry, cache_folder, monkeypatch):
    _withheld(monkeypatch, entry)
    assert entry.files[0].urls == ()
    for function in (fetch, load):
        with pytest.raises(DatasetError, match=r"not downloaded.*ipums\.org.*--file"):
            function("small")


@pytest.mark.parametrize("entry", [IPUMS_BR, IPUMS_US])
def test_the_users_own_file_is_taken(entry, cache_folder, monkeypatch, tmp_path):
    _withheld(monkeypatch, entry)
    own = tmp_path / "my extract"
    own.write_bytes(ROWS)
    (path,) = fetch("small", own_file=own)
    assert path.read_bytes() == ROWS and load("small").y.tolist() == [0, 1, 1]
    expected = "verified" if entry is IPUMS_BR else "unverified"
    assert [s.state for s in check("small")] == [expected]


@pytest.mark.parametrize("entry", [IPUMS_BR, IPUMS_US])
@pytest.mark.parametrize("text", [b"", b"no numbers\n", b"1 2 3 0\n", b"1 2 0\n" * 4])
def test_another_file_of_the_user_is_refused(
    entry, text, cache_folder, monkeypatch, tmp_path
):
    _withheld(monkeypatch, entry)
    own = tmp_path / "own.dat"
    own.write_bytes(text)
    with pytest.raises(DatasetError, match=r"own\.dat is no file of small"):
        fetch("small", own_file=own)
    assert not available("small")


def test_a_generated_dataset_takes_no_file(tmp_path):
    assert fetch("generated-census") == () and check("generated-census") == ()
    with pytest.raises(DatasetError, match="is generated"):
        fetch("generated-census", own_file=tmp_path / "x")


def test_an_unknown_name_is_refused():
    for function in (load, find, available, fetch, check):
        with pytest.raises(ValueError, match="one of adult, bank"):
            function("ipums")
