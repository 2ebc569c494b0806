# SPDX-License-Identifier: Apache-2.0
"""Atomic writers: the old file or the new one, on disk, and nothing beside it."""

import errno
import os
import stat

import pytest

from armijo import _files


def create_new(path: str, data: bytes) -> None:
    _files.write_synced(path, data, _files.NEW)


def fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_is_synced_before_its_name_changes(tmp_path, monkeypatch):
    events = []
    for name in ("fsync", "replace"):
        real = getattr(os, name)
        monkeypatch.setattr(
            os,
            name,
            lambda *given, name=name, real=real: events.append(name) or real(*given),
        )
    _files.replace_file(tmp_path / "file", b"new")
    assert events == ["fsync", "replace", "fsync"]  # the file, its name, its folder
    assert (tmp_path / "file").read_bytes() == b"new"


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_failed_replacement_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            _files.replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("create", [create_new, _files.create_whole])
def test_what_is_there_is_not_overwritten(tmp_path, create):
    path = tmp_path / "file"
    create(str(path), b"first")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        create(str(path), b"second")
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("create", [create_new, _files.create_whole])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_failed_creation_leaves_nothing(tmp_path, monkeypatch, create, call):
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="No space left"):
            create(str(tmp_path / "file"), b"data")
    assert os.listdir(tmp_path) == []


def test_short_writes_go_on(tmp_path, monkeypatch):
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: real(fd, data[:3]))
        create_new(str(tmp_path / "file"), b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
