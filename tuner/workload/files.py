"""Workload files, read lazily: one pass keeps the place and the lengths of each line, never the prompts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tuner.errors import WorkloadError
from tuner.workload.records import Record, RecordError, session_of
from tuner.workload.request import Session
from tuner.workload.sample import Ints


@dataclass(frozen=True, slots=True)
class FileSource:
    """The sessions of a file. `record(index)` reads one again when it is asked for."""

    path: Path
    record: Callable[[int], Record]
    prompt_tokens: Ints
    output_tokens: Ints
    total_requests: int | None
    lengths: Mapping[int, int]
    """Answer lengths by record, from a recorded run; empty when none was named."""

    def session(self, index: int) -> Session:
        return _with_length(session_of(self.record(index), index), self.lengths.get(index))


def open_file(path: Path, lengths_from: Path | None = None) -> FileSource:
    """Index a workload file. Raises WorkloadError, naming file, line and what would be right."""
    lengths = read_lengths(lengths_from) if lengths_from else {}
    if path.suffix == ".json":
        records = _whole(path)
        return _index(path, records.__getitem__, enumerate(records), lengths)
    offsets: list[int] = []
    return _index(path, lambda index: _read_line(path, offsets[index]), _lines(path, offsets), lengths)


def read_lengths(path: Path) -> dict[int, int]:
    """Answer lengths of a recorded run, by the order of its requests.

    One record a line with `output_tokens` (or `completion_tokens`, `output_len`), or the JSON line that
    `sglang.bench_serving --output-details` appends, with all of them in `output_lens`.
    """
    found: dict[int, int] = {}
    for _, record in _records(path):
        many = record.get("output_lens")
        one = next(
            (record[name] for name in ("output_tokens", "completion_tokens", "output_len") if name in record),
            0,
        )
        for value in many if isinstance(many, list) else [one]:
            found[len(found)] = int(str(value or 0))
    if not any(found.values()):
        raise WorkloadError(f"{path}: no output lengths; a recorded run needs `output_tokens` or `output_lens`")
    return {index: tokens for index, tokens in found.items() if tokens > 0}


def _index(
    path: Path,
    record: Callable[[int], Record],
    records: Iterator[tuple[int, Record]] | enumerate[Record],
    lengths: Mapping[int, int],
) -> FileSource:
    prompts: list[int] = []
    outputs: list[int] = []
    requests = 0
    for index, each in records:
        session = _with_length(_session(path, index, each), lengths.get(index))
        requests += len(session)
        prompts.append(sum(request.prompt_tokens for request in session))
        outputs.append(sum(request.output_tokens or request.max_tokens for request in session))
    if not prompts:
        raise WorkloadError(f"{path}: holds no request")
    return FileSource(path, record, np.asarray(prompts), np.asarray(outputs), requests, lengths)


def _with_length(session: Session, tokens: int | None) -> Session:
    if tokens is None or len(session) != 1:
        return session
    return (replace(session[0], output_tokens=tokens, max_tokens=tokens, ignore_eos=True),)


def _session(path: Path, index: int, record: Record) -> Session:
    try:
        return session_of(record, index)
    except RecordError as error:
        raise WorkloadError(f"{path}, record {index + 1}: {error}") from None


def _records(path: Path) -> Iterator[tuple[int, Record]] | enumerate[Record]:
    return enumerate(_whole(path)) if path.suffix == ".json" else _lines(path, [])


def _whole(path: Path) -> list[Record]:
    """A JSON list, or one object whose `input_lens`/`output_lens` stand for many requests."""
    content = _parse(path, 1, path.read_bytes())
    if isinstance(content, Mapping):
        content = _expanded(content)
    if not isinstance(content, Sequence) or not all(isinstance(record, Mapping) for record in content):
        raise WorkloadError(f"{path}: must be a list of objects (one object a line is a .jsonl file)")
    return list(content)


def _expanded(record: Record) -> list[Record]:
    inputs, outputs = record.get("input_lens"), record.get("output_lens")
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        return [record]
    pairs = zip(inputs, outputs, strict=False)
    return [{"prompt_tokens": asked, "output_tokens": answered} for asked, answered in pairs if answered]


def _lines(path: Path, offsets: list[int]) -> Iterator[tuple[int, Record]]:
    """Every object of a .jsonl file; its byte offset is appended to `offsets` before it is yielded."""
    with path.open("rb") as file:
        offset = 0
        for number, line in enumerate(file, start=1):
            start, offset = offset, offset + len(line)
            if not line.strip():
                continue
            record = _parse(path, number, line)
            if not isinstance(record, Mapping):
                raise WorkloadError(f"{path}, line {number}: must be a JSON object")
            offsets.append(start)
            yield len(offsets) - 1, record


def _read_line(path: Path, offset: int) -> Record:
    with path.open("rb") as file:
        file.seek(offset)
        record: Record = json.loads(file.readline())
    return record


def _parse(path: Path, number: int, line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise WorkloadError(f"{path}, line {number}: not JSON ({error})") from None
