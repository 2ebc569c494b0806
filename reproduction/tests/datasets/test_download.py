# SPDX-License-Identifier: Apache-2.0
"""Downloads from a publisher that is slow, wrong, short or not there."""

import dataclasses
import errno
import os
import pathlib
import socket
import threading

import pytest

from armijo.errors import DatasetError
from armijo_reproduction.datasets import cache
from armijo_reproduction.datasets.download import SourceError, download
from armijo_reproduction.datasets.files import DataFile, Source
from reproduction.tests.datasets.conftest import CONTENT, FOLDER

HALF = len(CONTENT) // 2


@pytest.fixture
def part(tmp_path):
    return tmp_path / "rows.part"


def _names(folder):
    return {p.name for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"}


def test_a_download_is_whole_and_reports_its_progress(publisher, published, part):
    calls = []
    resumed = download(
        published.sources[0].url, part, progress=lambda *c: calls.append(c)
    )
    assert not resumed and part.read_bytes() == CONTENT
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})


def test_an_unknown_length_is_reported_as_none(publisher, published, part):
    publisher.send_length = False
    calls = []
    download(published.sources[0].url, part, progress=lambda *c: calls.append(c))
    assert part.read_bytes() == CONTENT and calls[-1] == (len(CONTENT), None)


def test_a_download_goes_on_where_it_stopped(publisher, published, part):
    part.write_bytes(CONTENT[:HALF])
    calls = []
    assert download(published.sources[0].url, part, progress=lambda *c: calls.append(c))
    assert part.read_bytes() == CONTENT
    assert publisher.requests == [("/plain", f"bytes={HALF}-")]
    assert calls[0][0] > HALF and calls[-1] == (len(CONTENT), len(CONTENT))


def test_a_server_without_ranges_starts_over(publisher, published, part):
    publisher.ranges = False
    part.write_bytes(b"x" * HALF)
    assert not download(published.sources[0].url, part)
    assert part.read_bytes() == CONTENT


def test_a_server_that_sends_another_range_is_not_believed(publisher, published, part):
    publisher.wrong_start = 7
    part.write_bytes(CONTENT[:HALF])
    with pytest.raises(SourceError, match=f"byte {HALF}, got byte {HALF + 7}"):
        download(published.sources[0].url, part)
    assert not part.exists()


def test_a_cut_connection_leaves_the_part_to_go_on_from(publisher, published):
    publisher.cut_after = HALF
    published = DataFile(
        name="rows.txt",
        folders=(FOLDER,),
        sha256=published.sha256,
        sources=published.sources[:1],
    )
    with pytest.raises(DatasetError, match=f"{len(CONTENT)} bytes .* got {HALF}"):
        cache.download_file(published)
    assert _names(cache.cache_root()) == {"rows.txt.part"}
    publisher.cut_after = None
    path = cache.download_file(published)
    assert path.read_bytes() == CONTENT
    assert publisher.requests[-1] == ("/plain", f"bytes={HALF}-")
    assert _names(cache.cache_root()) == {"rows.txt"}


def test_a_part_that_was_complete_is_taken(publisher, published):
    folder = cache.cache_root() / FOLDER
    folder.mkdir(parents=True)
    (folder / "rows.txt.part").write_bytes(CONTENT)
    assert cache.download_file(published).read_bytes() == CONTENT
    assert publisher.requests == [("/plain", f"bytes={len(CONTENT)}-")]


@pytest.mark.parametrize("stale", [b"x" * HALF, b"x" * (len(CONTENT) + 5)])
def test_bytes_of_another_version_are_thrown_away_once(publisher, published, stale):
    folder = cache.cache_root() / FOLDER
    folder.mkdir(parents=True)
    (folder / "rows.txt.part").write_bytes(stale)
    assert cache.download_file(published).read_bytes() == CONTENT
    assert publisher.requests == [
        ("/plain", f"bytes={len(stale)}-"),
        ("/plain", None),
    ]


def test_a_wrong_file_is_refused_and_leaves_nothing(publisher, published):
    publisher.pages = {"/plain": b"<html>Sign in</html>", "/packed": b"\x1f\x8bno"}
    with pytest.raises(DatasetError) as caught:
        cache.download_file(published)
    message = str(caught.value)
    assert published.sha256 in message and "cannot be unpacked" in message
    assert _names(cache.cache_root()) == set()


def test_the_second_address_is_tried(publisher, published):
    del publisher.pages["/plain"]
    path = cache.download_file(published)
    assert path.name == "rows.txt.gz"
    assert cache.read_content(published, path) == CONTENT


def test_not_found_is_said(publisher, published):
    publisher.pages.clear()
    with pytest.raises(DatasetError, match=r"answered 404 .* answered 404"):
        cache.download_file(published)
    assert _names(cache.cache_root()) == set()


def test_no_network_is_said(cache_folder):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
        file = DataFile(
            name="x",
            folders=(FOLDER,),
            sha256="0",
            sources=(Source(url=url, saved_as="x"),),
        )
        with pytest.raises(DatasetError, match=r"Cannot reach .* check the network"):
            cache.download_file(file)
    assert _names(cache_folder) == set()


def test_a_silent_server_is_given_up(cache_folder, part):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        with pytest.raises(SourceError, match="timed out"):
            download(url, part, timeout=0.05)
    assert not part.exists()


@pytest.mark.parametrize("url", ["ftp://example.com/x", "file:///etc/hosts", "x"])
def test_only_web_addresses_are_opened(url, part):
    with pytest.raises(SourceError, match="starts with http"):
        download(url, part)


def test_a_full_disk_is_said_and_the_next_run_goes_on(
    publisher, published, monkeypatch
):
    class Full:
        """A file on a disk with room for half of the content."""

        def __init__(self, file):
            self.file, self.room = file, HALF

        def write(self, data):
            self.file.write(data[: self.room])
            if len(data) > self.room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.room -= len(data)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

    real = pathlib.Path.open
    with monkeypatch.context() as patch:
        patch.setattr(
            pathlib.Path,
            "open",
            lambda path, mode="r", *rest: (
                real(path, mode, *rest) if "r" in mode else Full(real(path, mode))
            ),
        )
        with pytest.raises(DatasetError, match=r"No space left .* ARMIJO_CACHE"):
            cache.download_file(published)
    assert _names(cache.cache_root()) == {"rows.txt.part"}
    assert cache.download_file(published).read_bytes() == CONTENT
    assert publisher.requests[-1] == ("/plain", f"bytes={HALF}-")


def test_an_interrupted_run_leaves_only_the_part(publisher, published):
    def interrupt(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.download_file(published, progress=interrupt)
    assert _names(cache.cache_root()) == {"rows.txt.part"}
    assert cache.download_file(published).read_bytes() == CONTENT


def test_threads_that_miss_a_file_together_download_it_once(publisher, published):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(cache.download_file(published)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and len(set(found)) == 1
    assert publisher.requests == [("/plain", None)]


def test_a_mirror_takes_the_place_of_the_publisher(publisher, published, monkeypatch):
    monkeypatch.setenv("ARMIJO_MIRROR", f"{publisher.url}/mirror/")
    publisher.pages = {f"/mirror/{FOLDER}/rows.txt": CONTENT}
    assert cache.download_file(published).read_bytes() == CONTENT


def test_a_mirror_is_asked_once_for_what_many_publish(
    publisher, published, monkeypatch
):
    monkeypatch.setenv("ARMIJO_MIRROR", publisher.url)
    many = dataclasses.replace(
        published,
        sources=tuple(
            Source(url=f"https://{site}.example/rows.txt", saved_as="rows.txt")
            for site in "abc"
        ),
    )
    with pytest.raises(DatasetError, match="answered 404"):
        cache.download_file(many)
    assert publisher.requests == [(f"/{FOLDER}/rows.txt", None)]
