"""Batches as files for any trainer: a line, or a row, for each sample, with the same columns in JSONL and Parquet.

Columns: `ids`, `mask`, `logprobs` and `versions` with an element for each token; `group_id`, `rollout_id`, `agent`,
`turns`, `reward`, `advantage`, `weight`, `staleness` and `version`, `tag`, `seed`, `stop_reason`, `truncated`; `text`,
the turns without token ids; and `calls`, which call of a team each turn is. What is read back equals what was written.
A file appears when it is complete.
"""

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from outrider.core.crash_points import reached
from outrider.core.decoding import json_decoder
from outrider.core.errors import InvalidInput
from outrider.train.arrays import frozen, np
from outrider.train.batch import Batch
from outrider.train.sample import Sample, SampleCall, TextTurn

_log = logging.getLogger(__name__)

SCHEMA = 1
"""Raised when a column changes so that an older reader would misread it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSample:
    """A sample with what its batch says of it. `version` is the batch's."""

    sample: Sample
    tag: str | None = None
    seed: int | None = None
    advantage: float = 0.0
    weight: float = 1.0
    staleness: int = 0
    version: int = 0


_Id = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Version = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
_Bit = Annotated[int, Meta(ge=0, le=1)]


class Line(Struct, frozen=True, kw_only=True):
    """A sample as JSON. A log-probability that is not known is null."""

    schema: int = SCHEMA
    rollout_id: str
    group_id: str | None
    tag: str | None
    seed: int | None
    agent: str
    turns: tuple[int, ...]
    reward: float | None
    advantage: float
    weight: float
    staleness: int
    version: int
    stop_reason: str
    truncated: bool
    ids: list[_Id]
    mask: list[_Bit]
    logprobs: list[float | None]
    versions: list[_Version]
    text: tuple[TextTurn, ...]
    calls: tuple[SampleCall, ...] = ()


def exported(batch: Batch) -> Iterator[ExportedSample]:
    """All samples of the batch, in its order. Warns if a trainer cannot learn of some of what the policy wrote."""
    if (warning := batch.token_accounting().warning) is not None:
        _log.warning("exporting batch of version %d: %s", batch.version, warning)
    staleness, weights, values = batch.staleness.tolist(), batch.weights.tolist(), batch.advantages.values.tolist()
    row = 0
    for number, trajectory in enumerate(batch.trajectories):
        for sample in trajectory.samples:
            yield ExportedSample(
                sample=sample,
                tag=trajectory.tag,
                seed=trajectory.seed,
                advantage=values[row],
                weight=weights[row],
                staleness=staleness[number],
                version=batch.version,
            )
            row += 1


def write_jsonl(samples: Batch | Iterable[ExportedSample], path: str | Path) -> int:
    """Write them to `path`, replacing what is there; how many there are. Blocks."""
    n_written = 0
    encode = msgspec.json.Encoder().encode
    with written_whole(path) as unfinished, unfinished.open("wb") as file:
        for each in exported(samples) if isinstance(samples, Batch) else samples:
            file.write(encode(_line(each)) + b"\n")
            n_written += 1
    return n_written


def read_jsonl(path: str | Path) -> Iterator[ExportedSample]:
    """What `write_jsonl` wrote. Blocks; refuses the first line that is wrong, by its number."""
    decode = json_decoder(Line).decode
    try:
        with Path(path).open("rb") as file:
            for number, text in enumerate(file, 1):
                try:
                    yield _sample(decode(text))
                except (msgspec.DecodeError, UnicodeError, InvalidInput) as exc:
                    raise InvalidInput(f"{path}:{number}: not an exported sample: {exc}") from exc
    except OSError as exc:
        raise InvalidInput(f"cannot read {path}: {exc.strerror}") from exc


def plain_columns(each: ExportedSample) -> dict[str, Any]:
    """All columns but those with an element for each token, the text and the calls."""
    sample = each.sample
    return {
        "rollout_id": sample.rollout_id,
        "group_id": sample.group_id,
        "tag": each.tag,
        "seed": each.seed,
        "agent": sample.agent,
        "turns": sample.turns,
        "reward": sample.reward,
        "advantage": each.advantage,
        "weight": each.weight,
        "staleness": each.staleness,
        "version": each.version,
        "stop_reason": sample.stop_reason,
        "truncated": sample.truncated,
    }


def from_columns(columns: dict[str, Any]) -> ExportedSample:
    """The sample of these columns: arrays for tokens, which must be equally long, tuples of text turns and of calls."""
    arrays = {name: frozen(columns[column]) for name, column in TOKEN_COLUMNS.items()}
    if len({array.size for array in arrays.values()}) > 1:
        sizes = ", ".join(f"{column} {columns[column].size}" for column in TOKEN_COLUMNS.values())
        raise InvalidInput(f"the columns have different lengths: {sizes}")
    of_sample = ("rollout_id", "group_id", "agent", "reward", "stop_reason", "truncated", "text", "calls")
    sample = Sample(**arrays, turns=tuple(columns["turns"]), **{name: columns[name] for name in of_sample})
    of_batch = ("tag", "seed", "advantage", "weight", "staleness", "version")
    return ExportedSample(sample=sample, **{name: columns[name] for name in of_batch})


TOKEN_COLUMNS = {"tokens": "ids", "loss_mask": "mask", "logprobs": "logprobs", "versions": "versions"}
"""The arrays of a sample, and the columns that hold them."""


@contextmanager
def written_whole(path: str | Path) -> Iterator[Path]:
    """A file to write to that takes the place of `path` at the end; if something goes wrong, nothing changes."""
    path = Path(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield unfinished
        reached("batch.written")
        unfinished.replace(path)
    except OSError as exc:
        raise InvalidInput(f"cannot write {path}: {exc.strerror or exc}") from exc
    finally:
        unfinished.unlink(missing_ok=True)


def _line(each: ExportedSample) -> Line:
    sample = each.sample
    return Line(
        **plain_columns(each),
        ids=sample.tokens.tolist(),
        mask=sample.loss_mask.astype(np.uint8).tolist(),
        logprobs=sample.logprobs.tolist(),
        versions=sample.versions.tolist(),
        text=sample.text,
        calls=sample.calls,
    )


def _sample(line: Line) -> ExportedSample:
    if line.schema > SCHEMA:
        raise InvalidInput(f"schema {line.schema}; this Outrider knows up to {SCHEMA}; upgrade")
    columns = msgspec.structs.asdict(line)
    columns["ids"] = np.array(line.ids, np.int32)
    columns["mask"] = np.array(line.mask, np.bool_)
    columns["logprobs"] = np.array(line.logprobs, np.float32)
    columns["versions"] = np.array(line.versions, np.int32)
    return from_columns(columns)
