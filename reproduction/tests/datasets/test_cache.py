# SPDX-License-Identifier: Apache-2.0
"""Where files are looked for, in which order, and how the user's own get in."""

import gzip
import hashlib
import zipfile
from pathlib import Path

import pytest

from armijo.errors import DatasetError
from armijo_reproduction.datasets import cache
from armijo_reproduction.datasets.files import DataFile
from reproduction.tests.datasets.conftest import CONTENT, FOLDER


def _put(root, name="rows.txt", data=CONTENT, folder=FOLDER):
    path = root / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def test_nothing_is_found_on_an_empty_machine(published, publisher):
    assert cache.locate(published) is None
    assert publisher.requests == []


def test_the_nearest_place_wins(published, tmp_path, monkeypatch):
    expected = []
    expected.append(_put(cache.cache_root()))
    assert cache.locate(published) == expected[-1]
    for root in (
        tmp_path / "shared" / "data",
        tmp_path / "data",
        tmp_path / "here" / "shared" / "data",
        tmp_path / "here" / "data",
        tmp_path / "elsewhere",
    ):
        monkeypatch.setenv("ARMIJO_DATA", str(root) if "else" in str(root) else "")
        expected.append(_put(root))
        assert cache.locate(published) == expected[-1]


@pytest.mark.parametrize("name", ["rows.txt", "rows.txt.gz", "rows.zip", "bundle.zip"])
@pytest.mark.parametrize("folder", [FOLDER, f"{FOLDER}-old"])
def test_every_name_and_folder_is_looked_for(published, tmp_path, name, folder):
    path = _put(tmp_path / "data", name, folder=folder)
    assert cache.locate(published) == path


def test_a_folder_or_a_part_is_no_file(published, tmp_path):
    (tmp_path / "data" / FOLDER / "rows.txt").mkdir(parents=True)
    _put(tmp_path / "data", "rows.txt.gz.part")
    assert cache.locate(published) is None


def test_a_data_variable_that_names_no_folder_is_an_error(published, monkeypatch):
    monkeypatch.setenv("ARMIJO_DATA", "not-there")
    with pytest.raises(DatasetError, match=r"ARMIJO_DATA .* 'not-there'"):
        cache.locate(published)


def test_a_removed_current_directory_does_not_matter(published, tmp_path):
    path = _put(cache.cache_root())
    (tmp_path / "here").rmdir()
    assert cache.locate(published) == path


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
    assert cache.cache_root() == expected


def test_no_home_is_said(monkeypatch):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    for name in ("ARMIJO_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(DatasetError, match="set ARMIJO_CACHE"):
        cache.cache_root()


def test_a_cache_that_cannot_be_made_is_said(published, cache_folder):
    cache_folder.write_text("a file where the cache should be")
    with pytest.raises(DatasetError, match="Cannot write to the cache folder"):
        cache.download_file(published)


def test_an_unreadable_file_is_said(published, tmp_path):
    with pytest.raises(DatasetError, match=r"Cannot read .*gone"):
        cache.read_content(published, tmp_path / "gone")


@pytest.mark.parametrize("packed", [False, True])
def test_the_users_own_file_is_copied_as_it_is(published, tmp_path, packed):
    raw = gzip.compress(CONTENT) if packed else CONTENT
    own = tmp_path / "download (1).bin"
    own.write_bytes(raw)
    path = cache.install(published, own)
    assert path == cache.locate(published) and path.read_bytes() == raw
    assert path.name == ("rows.txt.gz" if packed else "rows.txt")
    assert own.read_bytes() == raw
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_an_archive_without_a_name_of_its_own_is_kept_unpacked(tmp_path, cache_folder):
    file = DataFile(
        name="rows.txt",
        folders=(FOLDER,),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )
    own = tmp_path / "mail attachment.zip"
    with zipfile.ZipFile(own, "w") as archive:
        archive.writestr("rows.txt", CONTENT)
    path = cache.install(file, own)
    assert path.name == "rows.txt" and path.read_bytes() == CONTENT


def test_a_reader_notices_that_a_file_was_replaced(published, tmp_path):
    path = tmp_path / "rows.txt"
    path.write_bytes(CONTENT[:-1])
    reader = cache.Reader()
    with pytest.raises(DatasetError, match="truncated"):
        reader.content(published, path)
    path.write_bytes(CONTENT)
    assert reader.content(published, path) == CONTENT


def test_what_is_made_here_is_verified_and_stored(published):
    with pytest.raises(DatasetError, match=r"made for rows\.txt"):
        cache.store(published, CONTENT[:-1])
    assert cache.locate(published) is None
    path = cache.store(published, CONTENT)
    assert path == cache.locate(published) and path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir()] == ["rows.txt"]


def test_another_file_of_the_user_is_refused(published, tmp_path):
    own = tmp_path / "own.txt"
    own.write_bytes(CONTENT[:-1])
    with pytest.raises(DatasetError, match=r"own\.txt to hold rows\.txt"):
        cache.install(published, own)
    assert cache.locate(published) is None


def test_a_copy_that_fails_leaves_nothing(published, tmp_path, monkeypatch):
    own = tmp_path / "own.txt"
    own.write_bytes(CONTENT)

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(DatasetError, match="No space left"):
        cache.install(published, own)
    assert list((cache.cache_root() / FOLDER).iterdir()) == []


def test_only_damaged_files_of_the_cache_are_discarded(published, tmp_path):
    good = _put(cache.cache_root())
    cache.discard_damaged(published)
    assert good.exists()
    good.write_bytes(b"damaged")
    cache.discard_damaged(published)
    assert not good.exists()
    theirs = _put(tmp_path / "data", data=b"damaged")
    cache.discard_damaged(published)
    assert theirs.exists()
