# SPDX-License-Identifier: Apache-2.0
"""Tables larger than memory: record batches of Arrow, read again for every pass.

What is looked at before the first charge is public: names and types of the columns,
numbers of rows, sizes.  Columns are projected at the reader, which stays two batches
ahead.  Each block is coded as it is read (:mod:`armijo.tables.coder`) and answers
exact sums (:mod:`armijo.data.blocks`), so a model does not depend on batch sizes or on
the order of the files; memory does not grow with the rows.  Blocks that fit a limit
are kept, which changes nothing but the time.
"""

import glob
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from numpy.typing import NDArray

from armijo._noise import PoissonRows
from armijo.data.blocks import ExactSum, Manifest, Task, block_total
from armijo.data.integer_rows import free_memory
from armijo.data.query import Rows, Taken
from armijo.errors import ArmijoError, TableError
from armijo.tables.cells import listed, shown
from armijo.tables.frames import arrow_to_pandas
from armijo.tables.reader import PANDAS_INDEX

AHEAD = 2
"""Batches that are read before they are asked for."""
_ROW_BYTES = 64  # labels, scores, limits and the like of a row that is kept
_BLOCK_NUMBERS = 1 << 24  # numbers of a block's features
_BLOCK_MEMORY = 1 << 28  # bytes that the features of a block may take
_MOST_ROWS = 1 << 16  # of a block
_HASHED = 1 << 22  # bytes of a file that are hashed at a time
_PARQUET = ds.ParquetFileFormat()
_KEPT = "Nothing of this pass was released; what was charged stays charged."
_UNSPENT = "Nothing was spent."

Item = TypeVar("Item")
Batches = Iterator[pa.RecordBatch]
Read = Callable[[Sequence[str], int], Iterable[pa.RecordBatch]]
"""Opens a reader of some columns with so many rows in a batch."""


@dataclass(frozen=True, eq=False)
class Piece:
    """Rows that are read one after the other: a file, or a query.

    Attributes
    ----------
    name : str
        What errors call it.
    n_rows : int
        The number of its rows, from its metadata.
    n_bytes : int
        What a pass reads of it at most.
    read : callable
        Opens a reader.
    stamp : callable
        Returns what changes when the piece does, without reading it.
    digests : callable or None
        Returns digests of its content; None where that is not known.
    ordered : bool
        Whether its rows come in the same order each time.
    """

    name: str
    n_rows: int
    n_bytes: int
    read: Read
    stamp: Callable[[], object] = field(default=lambda: None)
    digests: Callable[[], tuple[str, ...]] | None = None
    ordered: bool = True


@dataclass(frozen=True, eq=False)
class StreamedTable:
    """A table in pieces, with the names and types that they share.

    Made by :func:`open_stream`.  ``encode`` codes a block for a model that does not
    code it by itself.
    """

    schema: pa.Schema
    pieces: tuple[Piece, ...]
    encode: Callable[[pd.DataFrame], Taken] | None = None
    named: ClassVar[bool] = True

    def __len__(self) -> int:
        """Return the number of rows, from metadata."""
        return sum(piece.n_rows for piece in self.pieces)

    @property
    def n_bytes(self) -> int:
        """What a pass reads at most."""
        return sum(piece.n_bytes for piece in self.pieces)

    def head(self) -> pd.DataFrame:
        """Return the names and types of the columns as a frame without rows."""
        return arrow_to_pandas(self.schema.empty_table())

    def rows(
        self,
        encode: Callable[[pd.DataFrame], Taken],
        *,
        columns: Sequence[str],
        cell_bytes: int,
        features: int = 0,
        memory: int | None = None,
    ) -> "StreamedRows":
        """Return the rows for a run; parameters are those of :class:`StreamedRows`."""
        return StreamedRows(
            self,
            encode,
            columns=columns,
            cell_bytes=cell_bytes,
            features=features,
            memory=memory,
        )

    @property
    def ordered(self) -> bool:
        """Whether every pass finds the same row at the same number."""
        return all(piece.ordered for piece in self.pieces)

    def stamps(self) -> list[object]:
        """Return what changes when pieces do, without reading them."""
        return [piece.stamp() for piece in self.pieces]

    def frames(
        self,
        columns: Sequence[str] | None = None,
        height: int = _MOST_ROWS,
        stamps: Sequence[object] | None = None,
    ) -> Iterator[pd.DataFrame]:
        """Yield all rows, so many at a time, none of the frames empty.

        Pieces are to be as they were at their ``stamps``; None takes those of now.

        Raises
        ------
        ArmijoError
            A piece changed, also while it was read, or cannot be read.
        """
        names = list(self.schema.names if columns is None else columns)
        known = self.stamps() if stamps is None else stamps
        for piece, before in zip(self.pieces, known, strict=True):
            if piece.stamp() != before:
                raise _changed(piece.name)
            count = 0
            with _named(piece.name, _KEPT):
                for batch in ahead(iter(piece.read(names, height))):
                    count += batch.num_rows
                    if batch.num_rows:
                        yield arrow_to_pandas(pa.Table.from_batches([batch]))
            if count != piece.n_rows or piece.stamp() != before:
                raise _changed(piece.name)

    def frames_with(self, features: Sequence[str] | None) -> Iterator[pd.DataFrame]:
        """Yield all rows with those of the features that there are; None is all."""
        if len(self) == 0:
            raise TableError("Expected rows, got an empty table.")
        names = self.schema.names
        return self.frames([n for n in names if features is None or n in features])


@contextmanager
def _named(name: str, end: str) -> Iterator[None]:
    """Name what is read in an error of its reader, whose text may hold a cell."""
    try:
        yield
    except TableError as error:
        raise TableError(f"{name}: {error}") from None
    except ArmijoError:
        raise
    except Exception as error:
        raise ArmijoError(
            f"{name}: Expected rows that can be read, but {type(error).__name__} "
            "stopped the reader; write the file again, or mend the query (a cast of "
            f"its cells, for one). {end}"
        ) from None


def _changed(name: str) -> ArmijoError:
    return ArmijoError(
        f"{name}: Expected the file as it was when the run began, got a changed one. "
        f"{_KEPT} Bring the file back and resume."
    )


def ahead(items: Iterator[Item], most: int = AHEAD) -> Iterator[Item]:
    """Yield items that a thread makes, at most so many ahead of who takes them."""
    with ThreadPoolExecutor(1) as pool:
        waiting = deque(pool.submit(next, items, None) for _ in range(most))
        while (item := waiting.popleft().result()) is not None:
            waiting.append(pool.submit(next, items, None))
            yield item


@runtime_checkable
class Counting(Protocol):
    """An encoder whose rows share a weight, by how often a value occurs in a column."""

    @property
    def counts_of(self) -> str:
        """The column."""

    def counted(
        self, frames: Iterable[pd.DataFrame]
    ) -> Callable[[pd.DataFrame], Taken]:
        """Return the encoder that knows, from all rows of this column."""


class StreamedRows:
    """The rows of a streamed table, for the gate: answers totals only.

    Parameters
    ----------
    table : StreamedTable
        Where rows are read from.
    encode : callable
        From a frame to the rows and labels that queries see, each row by itself.
    columns : sequence of str
        The columns that ``encode`` needs.
    cell_bytes, features : int
        Bytes of a coded row, and the most features that it becomes.
    memory : int or None
        Bytes that may be kept; None is half of what is free now.
    height : int or None
        Rows of a block; None is chosen by the number of features.
    """

    def __init__(
        self,
        table: StreamedTable,
        encode: Callable[[pd.DataFrame], Taken],
        *,
        columns: Sequence[str],
        cell_bytes: int,
        features: int = 0,
        memory: int | None = None,
        height: int | None = None,
    ) -> None:
        self._table, self._encode, self._columns = table, encode, list(columns)
        self._n_rows = len(table)
        if self._n_rows == 0:
            raise TableError("Expected rows, got an empty table. Nothing was spent.")
        most = free_memory() if memory is None else memory
        self.plan = MemoryPlan.of(self._n_rows, cell_bytes, features, most, height)
        self._stamps = table.stamps()
        self._most, self._row_bytes = most, cell_bytes + _ROW_BYTES
        self._held: list[tuple[int, Any]] | None = None
        self._counted = False

    def __len__(self) -> int:
        """Return the number of rows when the run began."""
        return self._n_rows

    @property
    def ordered(self) -> bool:
        """Whether every pass finds the same row at the same number."""
        return self._table.ordered

    def total(self, task: Task) -> ExactSum:
        """Return the exact sum over all blocks, read in the order of the files."""
        return block_total(task, self.blocks())

    def sampled(self, batch: PoissonRows) -> "SampledRows":
        """Return the rows of a batch; they are numbered in the order of the files."""
        return SampledRows(self, batch)

    def blocks(self, batch: PoissonRows | None = None) -> Iterator[Rows]:
        """Yield the rows of each block, or those that are in a batch."""
        first = 0
        for height, block in self._read() if self._held is None else self._held:
            chosen = None if batch is None else batch.chosen(first, height)
            yield self._rows(block, chosen)
            first += height

    def _read(self) -> Iterator[tuple[int, Any]]:
        """Yield height and content of each block, coded if it is kept for the run."""
        self._count()
        held: list[tuple[int, Any]] = []
        for frame in self._frames(self._columns):
            block: Any = frame
            if self.plan.keeps_cells:
                block = self._encode(frame)
                if self.plan.keeps_features:  # with a cache that lasts for the run
                    block = Rows(block.X, block.y, run_cache={}, memory=self.plan.held)
                held.append((len(frame), block))
            yield len(frame), block
        if self.plan.keeps_cells:
            self._held = held

    def _frames(self, columns: Sequence[str]) -> Iterator[pd.DataFrame]:
        return self._table.frames(columns, self.plan.height, self._stamps)

    def _count(self) -> None:
        """Let an encoder count what weights depend on, before its first block."""
        if isinstance(self._encode, Counting) and not self._counted:
            self._encode = self._encode.counted(self._frames([self._encode.counts_of]))
        self._counted = True

    def _rows(self, block: Any, chosen: NDArray[np.int64] | None) -> Rows:
        if isinstance(block, Rows):
            return block if chosen is None else block.drawn(chosen)
        if isinstance(block, pd.DataFrame):  # each row is coded by itself
            block = self._encode(block if chosen is None else block.iloc[chosen])
        elif chosen is not None:
            return Rows(block.X[chosen], block.y[chosen], memory=self.plan.held)
        return Rows(block.X, block.y, memory=self.plan.held)

    def keeps(self, n_rows: float) -> bool:
        """Say whether so many coded rows may be kept in memory."""
        return n_rows * self._row_bytes <= self._most

    def parts(self) -> Manifest | None:
        """Return the manifest of the pieces; None where one has no digests."""
        manifest = []
        for piece in self._table.pieces:
            if piece.digests is None:
                return None
            entry = piece.name, piece.n_rows, piece.n_bytes, piece.digests()
            manifest.append(entry)
        return Manifest(tuple(self._columns), tuple(manifest))


class SampledRows:
    """The rows of one batch of a streamed table, drawn by their numbers.

    A batch that is asked a second time is kept from then on, if it fits: searches ask
    often, and which rows are in it does not change.
    """

    def __init__(self, rows: StreamedRows, batch: PoissonRows) -> None:
        self._rows, self._batch, self._asked = rows, batch, 0
        self._keeps = rows.keeps(batch.sampling_prob * len(rows))
        self._held: list[Rows] | None = None

    def __len__(self) -> int:
        """Return the number of rows that are drawn from."""
        return len(self._rows)

    def total(self, task: Task) -> ExactSum:
        """Return the exact sum over the rows of the batch."""
        self._asked += 1
        if self._held is not None:
            return block_total(task, self._held)
        blocks: Iterable[Rows] = self._rows.blocks(self._batch)
        if self._keeps and self._asked > 1:
            blocks = self._held = list(blocks)
        return block_total(task, blocks)

    def parts(self) -> Manifest | None:
        """Return what tells the table from others."""
        return self._rows.parts()


@dataclass(frozen=True)
class MemoryPlan:
    """What is kept of the rows, from public numbers.

    Attributes
    ----------
    height : int
        Rows of a block.
    keeps_cells, keeps_features : bool
        Whether coded rows, and what they become, stay in memory for the run.
    held : int
        Bytes that the features of a block may take.
    n_bytes : int
        About how many bytes rows take together.
    """

    height: int
    keeps_cells: bool
    keeps_features: bool
    held: int
    n_bytes: int

    @classmethod
    def of(
        cls,
        n_rows: int,
        cell_bytes: int,
        features: int,
        most: int,
        height: int | None = None,
    ) -> "MemoryPlan":
        """Return the plan for so many rows and ``most`` bytes."""
        if height is None:
            usual = _BLOCK_NUMBERS // max(features, cell_bytes // 8, 1)
            height = min(max(usual, 256), _MOST_ROWS)
        coded = n_rows * (cell_bytes + _ROW_BYTES)
        # Features of single columns, then those with products: both are held.
        whole = coded + 2 * 8 * n_rows * features
        rows = min(height, n_rows or height)
        block = rows * (3 * cell_bytes + _ROW_BYTES + 8 * features)
        kept = whole if whole <= most else coded * (coded <= most)
        return cls(
            height=height,
            keeps_cells=coded <= most,
            keeps_features=whole <= most,
            held=_BLOCK_MEMORY,
            n_bytes=kept + (AHEAD + 1) * block,
        )


def is_stream(X: object) -> bool:
    """Say whether rows are read in pieces: a dataset, a lazy frame or a relation."""
    return isinstance(X, StreamedTable | ds.Dataset) or _kind_of(X) is not None


def _kind_of(X: object) -> str | None:
    kind = type(X)
    name = kind.__module__.partition(".")[0], kind.__name__
    known = {
        ("polars", "LazyFrame"): "polars",
        ("duckdb", "DuckDBPyRelation"): "duckdb",
        ("_duckdb", "DuckDBPyRelation"): "duckdb",
    }
    return known.get(name)


def open_stream(X: Any) -> StreamedTable:
    """Return a dataset of pyarrow, a LazyFrame or a relation as a streamed table."""
    if isinstance(X, StreamedTable):
        return X
    kind = _kind_of(X)
    if kind == "polars":
        return _from_polars(X)
    if kind == "duckdb":
        return _from_duckdb(X)
    return _from_dataset(X)


def _from_polars(frame: Any) -> StreamedTable:
    import polars

    def read(names: Sequence[str], height: int) -> Iterator[pa.RecordBatch]:
        chosen = frame.select([polars.col(name) for name in names])
        for part in chosen.collect_batches(chunk_size=height, maintain_order=True):
            yield from part.to_arrow().to_batches(max_chunksize=height)

    name = "the lazy frame"
    with _named(name, _UNSPENT):
        n_rows = int(frame.select(polars.len()).collect().item())
        empty = frame.head(0).collect().to_arrow()
    size = n_rows * 8 * len(empty.schema)
    piece = Piece(name, n_rows, size, read, ordered=False)
    return StreamedTable(empty.schema, (piece,))


def _from_duckdb(relation: Any) -> StreamedTable:
    def reader(of: Any, height: int) -> pa.RecordBatchReader:
        # The second name is that of versions before 1.5.
        opened = getattr(of, "to_arrow_reader", None) or of.fetch_arrow_reader
        return opened(height)

    def read(names: Sequence[str], height: int) -> Iterable[pa.RecordBatch]:
        quoted = ('"' + name.replace('"', '""') + '"' for name in names)
        return reader(relation.project(", ".join(quoted)), height)

    name = "the relation"
    with _named(name, _UNSPENT):
        n_rows = int(relation.aggregate("count(*)").fetchall()[0][0])
        schema = reader(relation.limit(0), 1).schema
    size = n_rows * 8 * len(schema)
    piece = Piece(name, n_rows, size, read, ordered=False)
    return StreamedTable(schema, (piece,))


def _from_dataset(dataset: ds.Dataset) -> StreamedTable:
    """Return a dataset, file by file where it consists of whole Parquet files."""
    filtered = bool(getattr(dataset, "_scan_options", None))
    fragments = [] if filtered else list(dataset.get_fragments())
    if fragments and all(isinstance(f, ds.ParquetFileFragment) for f in fragments):
        _refuse_parts(fragments)
        found = [(f.path, f.filesystem, f) for f in fragments]
        return _of_files(found, dataset.schema, "the dataset")

    def read(names: Sequence[str], height: int) -> Iterable[pa.RecordBatch]:
        return dataset.scanner(
            columns=list(names),
            batch_size=height,
            batch_readahead=AHEAD,
            fragment_readahead=1,
        ).to_batches()

    name = "the dataset"
    with _named(name, _UNSPENT):
        n_rows = dataset.count_rows()
    size = n_rows * 8 * len(dataset.schema)
    piece = Piece(name, n_rows, size, read)
    files = _files_in(dataset)
    if files:
        piece = replace(piece, stamp=lambda: tuple(_stamp(*file) for file in files))
    with _named(name, _UNSPENT):
        asked = _asked_of(dataset)
    if files and asked is not None:
        piece = replace(
            piece, digests=lambda: (*asked, *(_whole_digest(*file) for file in files))
        )
    return StreamedTable(dataset.schema, (piece,))


def _refuse_parts(fragments: Sequence[ds.ParquetFileFragment]) -> None:
    """Refuse row groups of files: files are read whole, with rows that were left out.

    Arrow counts those rows, too, whatever the dataset would read.
    """
    for fragment in fragments:
        with _named(fragment.path, _UNSPENT):
            whole = fragment.num_row_groups == fragment.metadata.num_row_groups
        if not whole:
            raise TableError(
                f"{fragment.path}: Expected a whole file, got some of its row groups; "
                f"filter the dataset, or write the rows to a file. {_UNSPENT}"
            )


def _files_in(dataset: ds.Dataset) -> list[tuple[str, pafs.FileSystem]]:
    """Return the files of a dataset, leaving out what lies in memory."""
    if isinstance(dataset, ds.UnionDataset):
        return [file for child in dataset.children for file in _files_in(child)]
    paths = getattr(dataset, "files", ())
    return [(path, dataset.filesystem) for path in paths]


def _asked_of(dataset: ds.Dataset) -> tuple[str, ...] | None:
    """Return what decides, beside the bytes of its files, which rows a dataset has.

    None where not all of that is known: rows in memory, files that are not Parquet or
    read with options, and filters that Arrow cannot write down in full.
    """
    options = getattr(dataset, "_scan_options", None) or {}
    if options.keys() - {"filter"}:
        return None
    own = [_written(expression) for expression in options.values()]
    own.append(_schema_digest(dataset.schema))
    if isinstance(dataset, ds.UnionDataset):
        for child in dataset.children:
            asked = _asked_of(child)
            own += [None] if asked is None else asked
    elif not isinstance(dataset, ds.FileSystemDataset) or dataset.format != _PARQUET:
        return None
    else:
        # The public method refuses a dataset with a filter.
        for fragment in dataset._get_fragments(None):
            own += [fragment.path, *_fragment_texts(fragment)]
    known = tuple(text for text in own if text is not None)
    return known if len(known) == len(own) else None


def _fragment_texts(fragment: ds.ParquetFileFragment) -> tuple[str | None, ...]:
    """Return the values that a path stands for, and which row groups are read."""
    groups = str([group.id for group in fragment.row_groups])
    return _written(fragment.partition_expression), groups


def _schema_digest(schema: pa.Schema) -> str:
    content = schema.remove_metadata().serialize()
    return blake2b(content, digest_size=16).hexdigest()


def _written(expression: ds.Expression) -> str | None:
    """Return the digest of an expression, whose text Arrow cuts short; None without."""
    try:
        (content,) = expression.__reduce__()[1]
        return blake2b(content, digest_size=16).hexdigest()
    except (pa.ArrowException, TypeError, ValueError):
        return None


def find_stream(
    path: str | os.PathLike[str],
    *,
    memory: int | None = None,
    everything: bool = False,
) -> StreamedTable | None:
    """Return the Parquet files of a folder, a pattern or an address.

    None is for a file that is read whole: CSV, or a Parquet file that fits ``memory``
    (None is half of what is free), unless ``everything`` asks for that as well.

    Raises
    ------
    TableError
        Nothing matches, or files do not belong together; the file, and the column, is
        named.  Only metadata is read.
    """
    text = os.fspath(path)
    if "://" in text:
        filesystem, inside = _opened(text)
        return _of_files(_remote_files(filesystem, inside), None, text)
    local = pafs.LocalFileSystem()
    if Path(text).is_dir():
        inner = sorted(Path(text).rglob("*"))
        found = [p for p in inner if p.is_file() and _is_named(p.name)]
    elif glob.has_magic(text) and not Path(text).exists():
        found = sorted(map(Path, glob.glob(text, recursive=True)))
    elif text.lower().endswith(".parquet") and Path(text).is_file():
        single = _of_files([(text, local, None)], None, text)
        cells = 8 * len(single) * len(single.schema)
        most = free_memory() if memory is None else memory
        # A frame of pandas, its codes, and copies on the way.
        return single if everything or 4 * cells > most else None
    else:
        return None
    return _of_files([(str(p), local, None) for p in found], None, text)


def _opened(address: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of an address, and the path inside it."""
    try:
        filesystem, inside = pafs.FileSystem.from_uri(address)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableError(
            f"{address}: Expected an address that pyarrow can open, such as s3://, "
            f"gs:// or hdfs://, got {shown(error, most=200)}. Nothing was spent."
        ) from None
    return filesystem, inside


def _remote_files(
    filesystem: pafs.FileSystem, inside: str
) -> list[tuple[str, pafs.FileSystem, Any]]:
    info = filesystem.get_file_info(inside)
    if info.type == pafs.FileType.Directory:
        entries = filesystem.get_file_info(pafs.FileSelector(inside, recursive=True))
        paths = sorted(
            entry.path
            for entry in entries
            if entry.type == pafs.FileType.File and _is_named(entry.base_name)
        )
    else:
        paths = [inside] if info.type == pafs.FileType.File else []
    return [(path, filesystem, None) for path in paths]


def _is_named(name: str) -> bool:
    return not name.startswith((".", "_"))


def _of_files(
    files: list[tuple[str, pafs.FileSystem, Any]], schema: pa.Schema | None, text: str
) -> StreamedTable:
    """Return files as one table, refusing those that do not belong together."""
    if not files:
        raise TableError(
            f"{text}: Expected Parquet files, got none: nothing matches. Check the "
            "path. Nothing was spent."
        )
    pieces, seen = [], set[str]()
    first: pa.Schema | None = None
    for path, filesystem, fragment in files:
        local = isinstance(filesystem, pafs.LocalFileSystem)
        place = os.path.realpath(path) if local else path
        if place in seen:
            raise TableError(
                f"{path}: Expected each file once, got it twice: its rows would count "
                "twice. Leave one out. Nothing was spent."
            )
        seen.add(place)
        own, piece = _parquet(path, filesystem, fragment, schema)
        first = own if first is None else first
        _refuse_other_schema(path, own, files[0][0], first)
        if schema is not None:
            _refuse_other_types(path, own, "the dataset", schema)
        pieces.append(piece)
    assert first is not None
    fields = schema or [f for f in first if not PANDAS_INDEX.fullmatch(f.name)]
    return StreamedTable(pa.schema(fields), tuple(pieces))


def _refuse_other_schema(
    path: str, own: pa.Schema, first: str, whole: pa.Schema
) -> None:
    """Refuse a file whose columns or types are not those of the first."""
    twice = [name for name in own.names if own.names.count(name) > 1]
    if twice:
        raise TableError(
            f"{path}: Expected different names of columns, got {shown(twice[0])} "
            "twice; rename one. Nothing was spent."
        )
    missing = [name for name in whole.names if name not in own.names]
    extra = [name for name in own.names if name not in whole.names]
    if missing or extra:
        what = f"it lacks {listed(missing)}" if missing else f"it has {listed(extra)}"
        raise TableError(
            f"{path}: Expected the columns of {first}, but {what}; write the files "
            "with one schema. Nothing was spent."
        )
    _refuse_other_types(path, own, first, whole)


def _refuse_other_types(
    path: str, own: pa.Schema, first: str, whole: pa.Schema
) -> None:
    """Refuse a file of which a column has another type."""
    for name in (name for name in own.names if name in whole.names):
        kinds = own.field(name).type, whole.field(name).type
        if kinds[0] != kinds[1]:
            raise TableError(
                f"{path}: Expected column {shown(name)} to have the type {kinds[1]} as "
                f"in {first}, got {kinds[0]}; write the files with one schema. Nothing "
                "was spent."
            )


def _parquet(
    path: str, filesystem: pafs.FileSystem, fragment: Any, schema: pa.Schema | None
) -> tuple[pa.Schema, Piece]:
    """Return the schema and the rows of a Parquet file, from its metadata."""
    info = filesystem.get_file_info(path)
    if not info.size:
        found = "an empty file" if info.type == pafs.FileType.File else "no file"
        raise TableError(
            f"{path}: Expected a Parquet file, got {found}; remove it or write it "
            "again. Nothing was spent."
        )
    size = info.size
    try:
        with filesystem.open_input_file(path) as source:
            file = pq.ParquetFile(source)
            metadata, own = file.metadata, file.schema_arrow
    except (pa.ArrowException, OSError, ValueError) as error:
        raise TableError(
            f"{path}: Expected a Parquet file, got {shown(error, most=200)}; write it "
            "again. Nothing was spent."
        ) from None
    if metadata.num_rows == 0:
        raise TableError(
            f"{path}: Expected rows, got an empty table; remove the file. Nothing was "
            "spent."
        )
    _refuse_truncated(path, size, metadata)

    def read(names: Sequence[str], height: int) -> Iterable[pa.RecordBatch]:
        if fragment is not None and not set(names) <= set(own.names):
            yield from fragment.to_batches(  # with columns from the path
                schema=schema,
                columns=list(names),
                batch_size=height,
                batch_readahead=AHEAD,
                fragment_readahead=1,
            )
            return
        with filesystem.open_input_file(path) as source:
            file = pq.ParquetFile(source)
            # By row group, so that groups of any size are decoded batch by batch.
            for group in range(file.num_row_groups):
                for batch in file.iter_batches(height, [group], columns=list(names)):
                    yield batch.select(names)

    def stamp() -> object:
        return _stamp(path, filesystem)

    def digests() -> tuple[str, ...]:
        return _digests(path, filesystem, metadata)

    piece = Piece(path, metadata.num_rows, size, read, stamp, digests)
    return own, _with_values(piece, fragment, schema)


def _with_values(piece: Piece, fragment: Any, schema: pa.Schema | None) -> Piece:
    """Return a file with digests that tell which values its path stands for."""
    if fragment is None or schema is None:
        return piece
    values, content = _written(fragment.partition_expression), piece.digests
    if values is None or content is None:
        return replace(piece, digests=None)
    told = values, _schema_digest(schema)
    return replace(piece, digests=lambda: (*told, *content()))


def _stamp(path: str, filesystem: pafs.FileSystem) -> object:
    """Return what changes when a file does, also by a file in its place."""
    info = filesystem.get_file_info(path)
    inode = None
    if isinstance(filesystem, pafs.LocalFileSystem):
        with suppress(OSError):
            status = os.stat(path)
            inode = status.st_ino, status.st_ctime_ns
    return info.type, info.size, info.mtime_ns, inode


def _group_ends(metadata: Any, group: int) -> tuple[int, int]:
    """Return where the pages of a row group begin and end in the file."""
    chunks = [metadata.row_group(group).column(k) for k in range(metadata.num_columns)]
    starts = [
        min(chunk.data_page_offset, chunk.dictionary_page_offset or 1 << 62)
        for chunk in chunks
    ]
    ends = [
        start + chunk.total_compressed_size
        for start, chunk in zip(starts, chunks, strict=True)
    ]
    return min(starts), max(ends)


def _refuse_truncated(path: str, size: int, metadata: Any) -> None:
    """Refuse row groups that reach beyond the pages of the file."""
    room = size - metadata.serialized_size - 8  # length of the footer, magic bytes
    for group in range(metadata.num_row_groups):
        end = _group_ends(metadata, group)[1]
        if end > room:
            raise TableError(
                f"{path}: Expected row group {group} to end within the file, got one "
                f"that is cut off: it needs {end} bytes of {room}. Write the file "
                "again. Nothing was spent."
            )


def _digests(path: str, filesystem: pafs.FileSystem, metadata: Any) -> tuple[str, ...]:
    """Return the digest of the bytes of each row group; the file is read for it."""
    with filesystem.open_input_file(path) as source:
        groups = range(metadata.num_row_groups)
        return tuple(_hashed(source, *_group_ends(metadata, g)) for g in groups)


def _whole_digest(path: str, filesystem: pafs.FileSystem) -> str:
    """Return the digest of a file of any kind."""
    with filesystem.open_input_file(path) as source:
        return _hashed(source, 0, source.size())


def _hashed(source: Any, start: int, end: int) -> str:
    digest = blake2b(digest_size=16)
    for place in range(start, end, _HASHED):
        digest.update(source.read_at(min(_HASHED, end - place), place))
    return digest.hexdigest()
