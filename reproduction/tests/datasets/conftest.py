# SPDX-License-Identifier: Apache-2.0
"""A publisher on this machine whose faults a test can choose."""

import functools
import gzip
import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from armijo_reproduction.datasets import DataFile, available, load

CONTENT = b"".join(b"line %d of a published file\n" % i for i in range(40_000))
FOLDER = "armijo-test-set"


class Publisher(ThreadingHTTPServer):
    """Serves ``pages`` (path to bytes) and remembers what was asked of it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.pages = {}
        self.requests = []
        self.cut_after = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        page = self.server.pages.get(self.path)
        if page is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page[: self.server.cut_after])

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
    publisher.pages["/plain/rows.txt"] = CONTENT
    publisher.pages["/packed/rows.txt.gz"] = gzip.compress(CONTENT, mtime=0)
    return DataFile(
        name="rows.txt",
        folders=(FOLDER, f"{FOLDER}-old"),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        archives=("rows.zip", "bundle.zip"),
        urls=(f"{publisher.url}/plain/{{name}}", f"{publisher.url}/packed/{{name}}.gz"),
    )


@functools.lru_cache(maxsize=5)
def loaded(name):
    """Return a published dataset; without its files the test skips and says so."""
    if not available(name):
        pytest.skip(f"the files of {name} are not on this machine")
    return load(name, download=False)
