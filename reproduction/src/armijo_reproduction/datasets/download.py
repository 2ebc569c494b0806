# SPDX-License-Identifier: Apache-2.0
"""Bring one address into a ``.part`` file, going on where an earlier run stopped.

Nothing here trusts what arrives: the caller verifies the part before it gets its name.
"""

import http.client
import os
import re
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

from armijo.errors import DatasetError

Progress = Callable[[int, int | None], None]
"""Called with the bytes there are so far and all there will be, if that is known."""

TIMEOUT = 30.0
_CHUNK = 1 << 18
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")


class SourceError(DatasetError):
    """One address did not deliver; another one may."""


def download(
    url: str,
    part: Path,
    *,
    progress: Progress | None = None,
    timeout: float = TIMEOUT,
) -> bool:
    """Download ``url`` to ``part``, adding to the bytes that are there.

    Parameters
    ----------
    url : str
        An address of scheme http or https.
    part : pathlib.Path
        The unfinished file. It stays when the connection breaks, to be resumed.
    progress : callable, optional
        Called as ``progress(done, total)``; ``total`` is ``None`` if it is not known.
    timeout : float, default=30.0
        Seconds without an answer after which the connection is given up.

    Returns
    -------
    bool
        Whether bytes of an earlier run were kept. If the file turns out to be wrong,
        they may be to blame, and a fresh download is worth a try.

    Raises
    ------
    SourceError
        If the address does not deliver the whole file.
    DatasetError
        If the part cannot be written.
    """
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise SourceError(
            f"Expected an address that starts with http:// or https://, got {url!r}; "
            "correct ARMIJO_MIRROR."
        )
    offset = part.stat().st_size if part.exists() else 0
    response = _open(url, offset, timeout)
    if response is None:
        return True
    with response:
        start, total = _extent(response)
        if start not in (0, offset):
            part.unlink()
            raise SourceError(
                f"Asked {url} to go on at byte {offset}, got byte {start}; run again "
                "to start over."
            )
        done = _save(response, part, start, total, progress)
    if total is not None and done != total:
        raise SourceError(
            f"Expected {total} bytes from {url}, got {done}; the connection was cut "
            "short. Run again to go on from there."
        )
    return start > 0


def _open(url: str, offset: int, timeout: float) -> http.client.HTTPResponse | None:
    """Ask for what is missing; ``None`` if the server has nothing after the offset."""
    # Without "identity" a proxy may compress, and lengths and offsets would not fit.
    headers = {"User-Agent": "armijo", "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = urllib.request.urlopen(
            request, timeout=timeout
        )
        return response
    except urllib.error.HTTPError as error:
        with error:
            if offset and error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return None
        raise SourceError(
            f"{url} answered {error.code} {error.reason}; the publisher may have moved "
            "the file."
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise SourceError(
            f"Cannot reach {url} ({reason}); check the network connection."
        ) from error


def _extent(response: http.client.HTTPResponse) -> tuple[int, int | None]:
    """Return the offset of the first byte of an answer and the size of the file."""
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
        if match is None:
            raise SourceError(
                f"{response.url} sent a part of the file without saying which; run "
                "again later."
            )
        start, total = match.groups()
        return int(start), None if total == "*" else int(total)
    length = response.headers.get("Content-Length", "")
    return 0, int(length) if length.isdigit() else None


def _save(
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    """Write an answer to the part and return how many bytes it has now."""
    done = start
    try:
        with part.open("ab" if start else "wb") as sink:
            while chunk := _read(response):
                sink.write(chunk)
                # Flushed, so that a full disk shows here and a kill loses little.
                sink.flush()
                done += len(chunk)
                if progress is not None:
                    progress(done, total)
            os.fsync(sink.fileno())
    except OSError as error:
        raise DatasetError(
            f"Cannot write {part} ({error.strerror or error}); free some space, or set "
            "ARMIJO_CACHE to a folder with room, and run again."
        ) from error
    return done


def _read(response: http.client.HTTPResponse) -> bytes:
    """Return the next bytes; a fault of the network is not one of the disk."""
    try:
        return response.read(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(
            f"The connection to {response.url} broke ({error}); run again to go on "
            "from there."
        ) from error
