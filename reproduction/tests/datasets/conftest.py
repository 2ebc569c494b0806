# SPDX-License-Identifier: Apache-2.0
"""A publisher on this machine whose faults a test can choose."""

import gzip
import hashlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from armijo_reproduction.datasets.files import DataFile, Source

CONTENT = b"".join(b"line %d of a published file\n" % i for i in range(40_000))
FOLDER = "armijo-test-set"


class Publisher(ThreadingHTTPServer):
    """Serves ``pages`` (path to bytes) and remembers what was asked of it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = {}
        self.requests = []
        self.ranges = True
        self.send_length = True
        self.wrong_start = 0
        self.cut_after = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        asked = self.headers.get("Range")
        self.server.requests.append((self.path, asked))
        page = self.server.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked else 0
        if asked and self.server.ranges and start >= len(page):
            self.send_error(416)
            return
        if not (asked and self.server.ranges):
            start = 0
        self._answer(page, start)

    def _answer(self, page, start):
        self.send_response(206 if start else 200)
        if start:
            told = start + self.server.wrong_start
            last = len(page) - 1
            self.send_header("Content-Range", f"bytes {told}-{last}/{len(page)}")
        if self.server.send_length:
            self.send_header("Content-Length", str(len(page) - start))
        self.end_headers()
        self.wfile.write(page[start : self.server.cut_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def publisher():
    server = Publisher()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """An empty cache, no data beside, and no proxy between us and the publisher."""
    for name in ("ARMIJO_DATA", "ARMIJO_MIRROR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("ARMIJO_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "cache"


@pytest.fixture
def published(publisher, cache_folder):
    """A file that the publisher serves plain, and gzipped at a second address."""
    publisher.pages["/plain"] = CONTENT
    publisher.pages["/packed"] = gzip.compress(CONTENT, mtime=0)
    return DataFile(
        name="rows.txt",
        folders=(FOLDER, f"{FOLDER}-old"),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        archives=("rows.zip", "bundle.zip"),
        sources=(
            Source(url=f"{publisher.url}/plain", saved_as="rows.txt"),
            Source(url=f"{publisher.url}/packed", saved_as="rows.txt.gz"),
        ),
    )
