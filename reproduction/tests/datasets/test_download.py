# SPDX-License-Identifier: Apache-2.0
"""Where files are looked for, and downloads from a publisher that fails."""

import dataclasses
import errno
import os
import shutil
import socket
from pathlib import Path

import pooch
import pytest

from armijo_reproduction.datasets import DataFile, DatasetError, files
from reproduction.tests.datasets.conftest import CONTENT, FOLDER


def _names(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_download_gets_its_name_and_is_there_then(publisher, published):
    path = files.download(published)
    assert path.read_bytes() == CONTENT and path == files.locate(published)
    assert publisher.requests == ["/plain/rows.txt"]
    assert _names(files.cache_root()) == {"rows.txt"}


def test_a_bar_is_shown_if_asked_for(publisher, published, capfd):
    files.download(published)
    assert capfd.readouterr().err == ""
    files.locate(published).unlink()
    files.download(published, progress=True)
    assert "100%" in capfd.readouterr().err


@pytest.mark.parametrize("cut", [0, len(CONTENT) // 2])
def test_a_cut_connection_leaves_nothing(publisher, published, cut):
    publisher.cut_after = cut
    published = dataclasses.replace(published, urls=published.urls[:1])
    with pytest.raises(DatasetError, match=r"Cannot download rows\.txt"):
        files.download(published)
    assert _names(files.cache_root()) == set()
    publisher.cut_after = None
    assert files.download(published).read_bytes() == CONTENT


def test_a_wrong_file_is_refused_and_leaves_nothing(publisher, published):
    publisher.pages = {
        "/plain/rows.txt": b"<html>Sign in</html>",
        "/packed/rows.txt.gz": b"\x1f\x8bno",
    }
    with pytest.raises(DatasetError) as caught:
        files.download(published)
    message = str(caught.value)
    assert published.sha256 in message and "cannot be unpacked" in message
    assert _names(files.cache_root()) == set()


def test_the_second_address_is_tried(publisher, published):
    del publisher.pages["/plain/rows.txt"]
    path = files.download(published)
    assert path.name == "rows.txt.gz"
    assert files.read(published, path) == CONTENT


def test_not_found_is_said(publisher, published):
    publisher.pages.clear()
    with pytest.raises(DatasetError, match=r"404 .* 404"):
        files.download(published)
    assert _names(files.cache_root()) == set()


def _file(url):
    return DataFile(name="x", folders=(FOLDER,), sha256="0", urls=(url,))


def test_no_network_is_said(cache_folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        with pytest.raises(DatasetError, match="Check the network"):
            files.download(_file(url))
    assert _names(cache_folder) == set()


def test_a_silent_server_is_given_up(cache_folder, monkeypatch):
    monkeypatch.setattr(files, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(DatasetError, match="timed out"):
            files.download(_file(url))
    assert _names(cache_folder) == set()


@pytest.mark.parametrize("url", ["ftp://example.com/x", "file:///etc/hosts", "x"])
def test_only_web_addresses_are_opened(url, cache_folder):
    with pytest.raises(DatasetError, match="Cannot download x"):
        files.download(_file(url))
    assert _names(cache_folder) == set()


def test_a_full_disk_is_said_and_leaves_nothing(publisher, published, monkeypatch):
    def full(source, target):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "move", full)
        with pytest.raises(DatasetError, match=r"No space left .* cache folder"):
            files.download(published)
    assert _names(files.cache_root()) == set()
    assert files.download(published).read_bytes() == CONTENT


def test_an_interrupted_run_leaves_nothing(publisher, published, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(pooch.HTTPDownloader, "__call__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            files.download(published)
    assert _names(files.cache_root()) == set()
    assert files.download(published).read_bytes() == CONTENT


def test_a_mirror_takes_the_place_of_the_publisher(publisher, published, monkeypatch):
    monkeypatch.setenv("ARMIJO_MIRROR", f"{publisher.url}/mirror/")
    publisher.pages = {f"/mirror/{FOLDER}/rows.txt": CONTENT}
    assert files.download(published).read_bytes() == CONTENT


def test_a_mirror_is_asked_once_for_what_many_publish(
    publisher, published, monkeypatch
):
    monkeypatch.setenv("ARMIJO_MIRROR", publisher.url)
    urls = tuple(f"https://{site}.example/rows.txt" for site in "abc")
    with pytest.raises(DatasetError, match="404"):
        files.download(dataclasses.replace(published, urls=urls))
    assert publisher.requests == [f"/{FOLDER}/rows.txt"]


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
