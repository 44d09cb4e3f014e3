"""The export's columns as a Parquet file."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import msgspec

from outrider.core.decoding import from_json
from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command
from outrider.train.arrays import NDArray, np
from outrider.train.batch import Batch
from outrider.train.export import (
    SCHEMA,
    TOKEN_COLUMNS,
    ExportedSample,
    exported,
    from_columns,
    plain_columns,
    written_whole,
)
from outrider.train.sample import SampleCall, TextTurn

ROWS_AT_ONCE = 1024
"""How many samples are held in Arrow's form while a file is written or read."""

_JSON: Mapping[str, Any] = {"text": tuple[TextTurn, ...], "calls": tuple[SampleCall, ...]}
"""Columns that hold JSON, and what it is read as."""

_SCHEMA_KEY = b"outrider.schema"


def write_parquet(samples: Batch | Iterable[ExportedSample], path: str | Path) -> int:
    """Write them to `path`, replacing what is there; how many there are. Blocks."""
    pyarrow, parquet = _libraries("writing", path)
    schema = _schema(pyarrow)
    left = iter(exported(samples) if isinstance(samples, Batch) else samples)
    n_written = 0
    with written_whole(path) as unfinished, parquet.ParquetWriter(unfinished, schema) as writer:
        while some := list(islice(left, ROWS_AT_ONCE)):
            writer.write_table(_table(pyarrow, schema, some))
            n_written += len(some)
    return n_written


def read_parquet(path: str | Path) -> Iterator[ExportedSample]:
    """What `write_parquet` wrote. Blocks; refuses a file whose columns are others."""
    pyarrow, parquet = _libraries("reading", path)
    try:
        with parquet.ParquetFile(path) as file:
            _check(pyarrow, file.schema_arrow, path)
            for batch in file.iter_batches(ROWS_AT_ONCE):
                yield from _samples(batch, path)
    except (OSError, pyarrow.ArrowException) as exc:
        raise InvalidInput(f"cannot read {path}: {exc}") from exc


def _libraries(doing: str, path: str | Path) -> tuple[Any, Any]:
    try:
        import pyarrow as pa  # type: ignore[import-untyped] # noqa: PLC0415 an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError as exc:
        raise InvalidInput(f"{doing} {path} needs: {install_command('parquet')}") from exc
    return pa, parquet


def _schema(pa: Any) -> Any:
    kinds = {
        "rollout_id": pa.string(),
        "group_id": pa.string(),
        "tag": pa.string(),
        "seed": pa.int64(),
        "agent": pa.string(),
        "turns": pa.list_(pa.int32()),
        "reward": pa.float64(),
        "advantage": pa.float64(),
        "weight": pa.float64(),
        "staleness": pa.int32(),
        "version": pa.int32(),
        "stop_reason": pa.string(),
        "truncated": pa.bool_(),
        "ids": pa.list_(pa.int32()),
        "mask": pa.list_(pa.bool_()),
        "logprobs": pa.list_(pa.float32()),
        "versions": pa.list_(pa.int32()),
        **dict.fromkeys(_JSON, pa.string()),
    }
    may_be_null = {"group_id", "tag", "seed", "reward"}
    columns = [pa.field(name, kind, nullable=name in may_be_null) for name, kind in kinds.items()]
    return pa.schema(columns, metadata={_SCHEMA_KEY: str(SCHEMA)})


def _table(pa: Any, schema: Any, some: Sequence[ExportedSample]) -> Any:
    rows = [plain_columns(each) | {name: _to_json(getattr(each.sample, name)) for name in _JSON} for each in some]
    columns = {name: pa.array([row[name] for row in rows], schema.field(name).type) for name in rows[0]}
    offsets = np.cumsum([0, *(each.sample.n_tokens for each in some)], dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise InvalidInput(f"{len(some)} samples have {offsets[-1]} tokens, more than a list column can hold")
    for array, name in TOKEN_COLUMNS.items():
        values = np.concatenate([getattr(each.sample, array) for each in some])
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
    return pa.table([columns[name] for name in schema.names], schema=schema)


def _check(pa: Any, found: Any, path: str | Path) -> None:
    for field in _schema(pa):
        place = found.get_field_index(field.name)
        if place < 0 and field.name == "calls":
            continue  # files from before there were teams
        if place < 0:
            raise InvalidInput(f"{path}: there is no column {field.name!r}; give a file that write_parquet has written")
        if found.field(place).type != field.type:
            raise InvalidInput(f"{path}: the column {field.name!r} holds {found.field(place).type}, not {field.type}")
    schema = int((found.metadata or {}).get(_SCHEMA_KEY, SCHEMA))
    if schema > SCHEMA:
        raise InvalidInput(f"{path}: schema {schema}; this Outrider knows up to {SCHEMA}; upgrade")


def _samples(batch: Any, path: str | Path) -> Iterator[ExportedSample]:
    names = [name for name in batch.schema.names if name not in TOKEN_COLUMNS.values()]
    tokens = {name: _lists(batch.column(name), f"{path}: {name}") for name in TOKEN_COLUMNS.values()}
    for number, row in enumerate(batch.select(names).to_pylist()):
        arrays = {name: lists[number] for name, lists in tokens.items()}
        try:
            read = {name: from_json(row.get(name, "[]"), kind) for name, kind in _JSON.items()}
        except msgspec.DecodeError as exc:
            raise InvalidInput(f"{path}: a text of rollout {row['rollout_id']!r} cannot be read: {exc}") from exc
        yield from_columns({**row, **arrays, **read})


def _lists(column: Any, name: str) -> list[NDArray[Any]]:
    """The arrays in a column of lists, each on its own."""
    values = column.values
    if column.null_count or values.null_count:
        raise InvalidInput(f"{name} has empty cells")
    flat = values.to_numpy(zero_copy_only=False)
    offsets = column.offsets.to_pylist()
    return [flat[start:end].copy() for start, end in pairwise(offsets)]


def _to_json(values: tuple[Any, ...]) -> str:
    return msgspec.json.encode(values).decode()
