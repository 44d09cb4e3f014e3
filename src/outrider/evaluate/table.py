"""Tables of tasks: CSV and TSV, Parquet (extra `parquet`), and Hugging Face datasets (extra `hf`)."""

import csv
import io
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from outrider.core.errors import InvalidInput
from outrider.core.extras import install_command
from outrider.core.variables import variable
from outrider.evaluate.source import Placed, decode_text, shown

HUB = "hf:"
"""Begins the name of a Hugging Face dataset: `hf:NAME[/CONFIG][:SPLIT]`, NAME a dataset or a folder."""

PREFERRED_SPLITS = ("test", "validation", "train")
"""Which split is read when none is named."""

_SAVED_DATASET = ("dataset_info.json", "state.json")
_SAVED_SPLITS = "dataset_dict.json"


def csv_rows(name: str, data: bytes) -> Iterator[Placed]:
    """Rows as objects of text, numbered as spreadsheets do: the heading is row 1. Empty cells are left out."""
    text = decode_text(name, data)
    first_line = text.split("\n", 1)[0]
    delimiter = max("\t,;" if _suffix(name) == ".tsv" else ",;\t", key=first_line.count)
    previous = csv.field_size_limit(sys.maxsize)
    try:
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True))
    except csv.Error as exc:
        raise InvalidInput(f"{shown(name)}: {exc}") from exc
    finally:
        csv.field_size_limit(previous)
    if rows:
        yield from _objects(name, rows)


def _objects(name: str, rows: Sequence[Sequence[str]]) -> Iterator[Placed]:
    heading = [cell.strip() for cell in rows[0]]
    repeated = [cell for cell, number in Counter(heading).items() if number > 1]
    if repeated:
        raise InvalidInput(f"{shown(name)}, row 1: two columns are called {repeated[0]!r}")
    for number, row in enumerate(rows[1:], 2):
        place = f"{shown(name)}, row {number}"
        if len(row) > len(heading):
            raise InvalidInput(f"{place}: {len(row)} cells under {len(heading)} headings; quote cells that hold commas")
        if any(row):
            yield place, {column: cell for column, cell in zip(heading, row, strict=False) if cell}


def parquet_rows(name: str) -> Iterator[Placed]:
    """Rows of a Parquet file, read batch by batch."""
    try:
        from pyarrow import ArrowException  # type: ignore[import-untyped] # noqa: PLC0415 an extra
        from pyarrow.parquet import ParquetFile  # type: ignore[import-untyped] # noqa: PLC0415
    except ImportError as exc:
        raise InvalidInput(f"reading {name} needs: {install_command('parquet')}") from exc
    try:
        with ParquetFile(name) as file:
            yield from _arrow_rows(name, file.iter_batches())
    except (OSError, ArrowException) as exc:
        raise InvalidInput(f"cannot read {name}: {exc}") from exc


def is_saved_dataset(name: str) -> bool:
    """Whether `name` is a folder that `save_to_disk` of Hugging Face datasets has written."""
    folder = Path(name)
    return (folder / _SAVED_SPLITS).is_file() or all((folder / part).is_file() for part in _SAVED_DATASET)


def dataset_rows(name: str) -> Iterator[Placed]:
    """Rows of a Hugging Face dataset: `hf:NAME[/CONFIG][:SPLIT]`, or a folder written by `save_to_disk`."""
    try:
        import datasets  # type: ignore[import-untyped] # noqa: PLC0415 an extra, and slow to import
    except ImportError as exc:
        raise InvalidInput(f"reading {name} needs: {install_command('hf')}") from exc
    path, _, split = name.removeprefix(HUB).partition(":")
    try:
        if is_saved_dataset(path):
            found = datasets.load_from_disk(path)
        else:
            dataset, config = _name_and_config(path)
            found = datasets.load_dataset(dataset, config, token=variable("HF_TOKEN"))
    except Exception as exc:  # the library raises errors of a dozen others
        raise InvalidInput(f"cannot load {name}: {type(exc).__name__}: {exc}") from exc
    if isinstance(found, datasets.DatasetDict):
        found = found[_chosen_split(name, split, tuple(found))]
    elif split and split != str(found.split):
        raise InvalidInput(f"{name}: this dataset has the one split {str(found.split)!r}")
    # As Arrow tables, pictures stay bytes and need no library to decode them.
    batches = found.with_format("arrow").iter(batch_size=1000)
    yield from _arrow_rows(name, (batch for table in batches for batch in table.to_batches()))


def _name_and_config(path: str) -> tuple[str, str | None]:
    """`openai/gsm8k/main` is the configuration `main` of `openai/gsm8k`; folders have none."""
    owner, _, rest = path.partition("/")
    name, _, config = rest.partition("/")
    if Path(path).exists() or not config:
        return path, None
    return f"{owner}/{name}", config


def _chosen_split(name: str, wanted: str, splits: tuple[str, ...]) -> str:
    if not wanted and len(splits) == 1:
        return splits[0]
    candidates = (wanted,) if wanted else PREFERRED_SPLITS
    for candidate in candidates:
        if candidate in splits:
            return candidate
    problem = f"has no split {wanted!r}" if wanted else "has several splits"
    raise InvalidInput(f"{name} {problem}; add one of: {', '.join(f':{split}' for split in splits)}")


def _arrow_rows(name: str, batches: Iterator[Any]) -> Iterator[Placed]:
    number = 0
    for batch in batches:
        for row in batch.to_pylist():
            number += 1
            yield f"{shown(name)}, row {number}", {key: _plain(value) for key, value in row.items()}


def _plain(value: Any) -> Any:
    """A cell as a JSON-like value: dates and decimals as text, nothing else changed."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value) if isinstance(value, Decimal | UUID) else value


def _suffix(name: str) -> str:
    return Path(name.removesuffix(".gz")).suffix.lower()
