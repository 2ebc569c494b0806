# SPDX-License-Identifier: Apache-2.0
"""A file is known by its content, however it is packed."""

import gzip
import hashlib
import io
import tarfile
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from armijo_reproduction.datasets import DataFile, DatasetError, files


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return a function that reads bytes from a file on disk."""
    path = tmp_path_factory.mktemp("files") / "here"

    def content(file, raw):
        path.write_bytes(raw)
        # Several writes may fall into one tick of the clock.
        files.unpacked_file.cache_clear()
        return files.read(file, path)

    return content


CONTENT = b"a;b\n1;2\n" * 50


def _zip(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name.replace("_", "."), data)
    return buffer.getvalue()


def _tar(form=tarfile.PAX_FORMAT, kind=tarfile.REGTYPE, **members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(f"a folder/{name.replace('_', '.')}")
            member.size, member.type = len(data), kind
            archive.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


FILE = DataFile(
    name="rows.csv",
    folders=("rows",),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    archives=("rows.zip", "bundle.zip", "rows.tar.gz", "rows.tar"),
)
TAR = _tar(readme_txt=b"x", rows_csv=CONTENT)
PLAIN_ZIP = _zip(readme_txt=b"x", rows_csv=CONTENT)
PACKINGS = {
    "plain": CONTENT,
    "gzip": gzip.compress(CONTENT),
    "zip": PLAIN_ZIP,
    "zip in zip": _zip(other_zip=b"x", rows_zip=PLAIN_ZIP),
    "tar": TAR,
    "gnu tar": _tar(tarfile.GNU_FORMAT, rows_csv=CONTENT),
    "gzipped tar": gzip.compress(TAR),
}


@pytest.mark.parametrize("packing", PACKINGS)
def test_every_packing_gives_the_content(packing, read):
    assert read(FILE, PACKINGS[packing]) == CONTENT


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("length", [0, 3, 20, 0.5, -1])
def test_a_truncated_file_is_refused(packing, length, read):
    raw = PACKINGS[packing]
    cut = raw[: int(len(raw) * length) if isinstance(length, float) else length]
    if packing in ("tar", "gnu tar") and CONTENT in cut:
        # Half of such a small tar archive is padding after the files.
        assert read(FILE, cut) == CONTENT
        return
    with pytest.raises(DatasetError, match=r"Expected .*here to hold rows\.csv"):
        read(FILE, cut)


def test_other_content_is_refused_with_both_digests(read):
    with pytest.raises(DatasetError) as caught:
        read(FILE, CONTENT + b"x")
    other = hashlib.sha256(CONTENT + b"x").hexdigest()
    assert FILE.sha256 in str(caught.value) and other in str(caught.value)


@settings(deadline=None, max_examples=300)
@given(packing=st.sampled_from(sorted(PACKINGS)), data=st.data())
def test_wrong_bytes_never_pass_and_never_surprise(read, packing, data):
    raw = bytearray(PACKINGS[packing])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = read(FILE, bytes(raw))
    except DatasetError:
        return
    assert found == CONTENT


def test_an_archive_without_the_file_is_refused(read):
    for raw in (_zip(other_csv=CONTENT), _tar(other_csv=CONTENT)):
        with pytest.raises(DatasetError, match=r"no item named|holds no rows\.csv"):
            read(FILE, raw)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE, tarfile.FIFOTYPE])
def test_only_plain_files_are_read_from_a_tar_archive(kind, read):
    with pytest.raises(DatasetError, match=r"no item named|holds no rows\.csv"):
        read(FILE, _tar(kind=kind, rows_csv=b""))


def test_tar_is_taken_off_only_where_a_file_comes_in_one(read):
    file = DataFile(
        name="rows.csv", folders=("rows",), sha256=hashlib.sha256(TAR).hexdigest()
    )
    assert read(file, TAR) == TAR


def test_without_a_digest_any_content_passes(read):
    file = DataFile(name="rows.csv", folders=("rows",), sha256=None)
    assert read(file, b"anything") == b"anything"
