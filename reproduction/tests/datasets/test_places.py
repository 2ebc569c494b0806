# SPDX-License-Identifier: Apache-2.0
"""Where files are looked for, in which order, and how made ones get in."""

import os
from pathlib import Path

import pytest

from armijo_reproduction.datasets import DatasetError, files
from reproduction.tests.datasets.conftest import CONTENT, FOLDER


def _put(root, name="rows.txt", data=CONTENT, folder=FOLDER):
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_nothing_is_found_on_an_empty_machine(published, publisher):
    assert files.locate(published) is None
    assert publisher.requests == []


def test_the_nearest_place_wins(published, tmp_path, monkeypatch):
    expected = []
    expected.append(_put(files.cache_root()))
    assert files.locate(published) == expected[-1]
    for root in (
        tmp_path / "shared" / "data",
        tmp_path / "data",
        tmp_path / "here" / "shared" / "data",
        tmp_path / "here" / "data",
        tmp_path / "elsewhere",
    ):
        monkeypatch.setenv("ARMIJO_DATA", str(root) if "else" in str(root) else "")
        expected.append(_put(root))
        assert files.locate(published) == expected[-1]


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz", "rows.zip", "bundle.zip"])
@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}-old"])
def test_every_name_and_folder_is_looked_for(published, tmp_path, name, folder):
    path = _put(tmp_path / "data", name, folder=folder)
    assert files.locate(published) == path


def test_a_folder_or_a_part_is_no_file(published, tmp_path):
    (tmp_path / "data" / FOLDER / "rows.txt").mkdir(parents=True)
    _put(tmp_path / "data", "rows.txt.gz.part")
    assert files.locate(published) is None


def test_a_data_variable_that_names_no_folder_is_an_error(published, monkeypatch):
    monkeypatch.setenv("ARMIJO_DATA", "not-there")
    with pytest.raises(DatasetError, match=r"ARMIJO_DATA .* 'not-there'"):
        files.locate(published)


def test_a_removed_current_directory_does_not_matter(published, tmp_path):
    path = _put(files.cache_root())
    (tmp_path / "here").rmdir()
    assert files.locate(published) == path


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ARMIJO_CACHE": "mine", "XDG_CACHE_HOME": "/xdg"}, Path("mine")),
        ({"ARMIJO_CACHE": "~/mine"}, Path("/someone/mine")),
        ({"XDG_CACHE_HOME": "/xdg"}, Path("/xdg/armijo")),
        ({"XDG_CACHE_HOME": "relative"}, Path("/someone/.cache/armijo")),
        ({"ARMIJO_CACHE": ""}, Path("/someone/.cache/armijo")),
    ],
)
def test_the_cache_follows_the_environment(monkeypatch, variables, expected):
    for name in ("ARMIJO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/someone")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert files.cache_root() == expected


def test_a_cache_that_cannot_be_made_is_said(published, cache_folder):
    cache_folder.write_text("a file where the cache should be")
    with pytest.raises(DatasetError, match="Cannot write to the cache folder"):
        files.download(published)


def test_an_unreadable_file_is_said(published, tmp_path):
    with pytest.raises(DatasetError, match=r"Cannot read .*gone"):
        files.read(published, tmp_path / "gone")


def test_a_reader_notices_that_a_file_was_replaced(published, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DatasetError, match="truncated"):
        files.read(published, path)
    path.write_bytes(CONTENT)
    assert files.read(published, path) == CONTENT


def test_what_is_made_here_is_verified_and_stored(published):
    with pytest.raises(DatasetError, match=r"made for rows\.txt"):
        files.store(published, CONTENT[:-1])
    assert files.locate(published) is None
    path = files.store(published, CONTENT)
    assert path == files.locate(published) and path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["rows.txt"]


def test_a_write_that_fails_leaves_nothing(published, monkeypatch):
    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DatasetError, match="No space left"):
        files.store(published, CONTENT)
    assert list((files.cache_root() / FOLDER).iterdir()) == []
