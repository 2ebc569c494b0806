# SPDX-License-Identifier: Apache-2.0
"""Parquet files as partitions that workers read: whole row groups, some at a time.

How files are cut depends on nothing but the files, so a run can be resumed on a cluster
of another size.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs

from armijo.errors import TableError
from armijo.tables.stream import find_stream

PART_BYTES = 1 << 26
"""Bytes of decoded row groups from which on a partition is closed."""


@dataclass(frozen=True, eq=False)
class FilePart:
    """Row groups of a file, which a worker reads."""

    fragment: ds.ParquetFileFragment
    schema: pa.Schema

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns of the rows.

        Raises
        ------
        TableError
            They cannot be read; the file is named, without what its reader says.
        """
        try:
            return self.fragment.to_table(
                schema=self.schema, columns=list(columns), use_threads=False
            )
        except (pa.ArrowException, OSError) as error:
            raise TableError(
                f"{self.fragment.path}, in which {type(error).__name__} stopped the "
                "reader: write the file again"
            ) from None


@dataclass(frozen=True, eq=False)
class FileParts:
    """Files as partitions, with the names and types that they share."""

    schema: pa.Schema
    parts: tuple[FilePart, ...]


def open_files(path: str | os.PathLike[str]) -> FileParts:
    """Return the Parquet files of a folder, a pattern or an address as partitions.

    Raises
    ------
    TableError
        Nothing matches, or files do not belong together; the file, and the column, is
        named.  Only metadata is read.
    """
    text = os.fspath(path)
    stream = find_stream(text, everything=True)
    if stream is None:
        raise no_files(path)
    filesystem: pafs.FileSystem = pafs.LocalFileSystem()
    if "://" in text:
        filesystem, _ = pafs.FileSystem.from_uri(text)
    names = [piece.name for piece in stream.pieces]
    files = ds.dataset(
        names, schema=stream.schema, filesystem=filesystem, format="parquet"
    )
    parts = (
        FilePart(part, stream.schema)
        for fragment in files.get_fragments()
        for part in _cut(fragment)
    )
    return FileParts(stream.schema, tuple(parts))


def no_files(path: str | os.PathLike[str]) -> TableError:
    """Return the error of a path that names no Parquet files."""
    return TableError(
        f"{path}: Expected Parquet files for an engine (a folder, a pattern, an "
        "address or a file), got something else. Nothing was spent."
    )


def _cut(fragment: ds.ParquetFileFragment) -> Iterator[ds.ParquetFileFragment]:
    """Yield row groups of a file, as many as make a partition."""
    held: list[int] = []
    size = 0
    for group in fragment.row_groups:
        held, size = [*held, group.id], size + group.total_byte_size
        if size >= PART_BYTES:
            yield fragment.subset(row_group_ids=held)
            held, size = [], 0
    if held:
        yield fragment.subset(row_group_ids=held)
