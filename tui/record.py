"""Recordings: one JSON line a frame, after a header line. What was computed is not stored: replay computes
it again.

Line 1 is `{"kvtop_recording": 1, "interval_s": 1.0}`; every further line is a RecordedFrame. A name that ends
in `.gz` is compressed.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from launcher.gpus import GpuSample
from tui.errors import RecordError
from tui.frame import Frame, ServerReading
from tuner.journal.view import StudyView

FORMAT = 1
FLUSH_EVERY = 5
"""Frames; what a killed kvtop may lose."""


@dataclass(frozen=True, slots=True)
class RecordedFrame:
    """A Frame as it is written: the study is left out where it is that of the frame before."""

    taken_unix_s: float
    servers: tuple[ServerReading, ...]
    gpus: tuple[GpuSample, ...]
    gpu_problem: str | None
    study: StudyView | None
    problems: tuple[str, ...] = ()
    same_study: bool = False


class Recorder:
    """Appends frames to a new file."""

    def __init__(self, path: Path, interval_s: float) -> None:
        self._path = path
        self._study: object = None
        self._written = 0
        try:
            self._file = _opened(path)
        except OSError as error:
            raise RecordError(f"{path}: cannot be written: {error.strerror}") from error
        self._line({"kvtop_recording": FORMAT, "interval_s": interval_s})

    def write(self, frame: Frame) -> None:
        same = frame.study is not None and frame.study == self._study
        self._study = frame.study
        study = None if same else frame.study
        self._line(
            RecordedFrame(frame.taken_unix_s, frame.servers, frame.gpus, frame.gpu_problem, study, frame.problems, same)
        )

    def close(self) -> None:
        self._file.close()

    def _line(self, value: object) -> None:
        try:
            self._file.write(pydantic_core.to_json(value, inf_nan_mode="constants") + b"\n")
            self._written += 1
            if self._written % FLUSH_EVERY == 1:
                self._file.flush()
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be written: {error.strerror}") from error


def _opened(path: Path) -> IO[bytes]:
    return cast(IO[bytes], gzip.open(path, "wb")) if path.suffix == ".gz" else path.open("wb")


class Recording:
    """Random access to the frames of a file. Only offsets are held in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._codec = TypeAdapter(RecordedFrame)
        self._last_study: tuple[int, StudyView | None] = (-1, None)
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._file = _plain(path)
        try:
            self.interval_s = self._header()
            self._index()
        except RecordError:
            self.close()
            raise

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        self._file.close()

    @property
    def times_unix_s(self) -> list[float]:
        return self._times

    def frame(self, place: int) -> Frame:
        read = self._read(place)
        return Frame(
            read.taken_unix_s, read.servers, read.gpus, read.gpu_problem, self._study(place, read), read.problems
        )

    def _study(self, place: int, read: RecordedFrame) -> StudyView | None:
        """The study of a frame that says "the same": that of the nearest frame before which has one."""
        if read.same_study and self._last_study[0] == place - 1:
            self._last_study = (place, self._last_study[1])
            return self._last_study[1]
        before = place
        while read.same_study and before > 0:
            before -= 1
            read = self._read(before)
        self._last_study = (place, read.study)
        return read.study

    def _read(self, place: int) -> RecordedFrame:
        self._file.seek(self._offsets[place])
        try:
            return self._codec.validate_json(self._file.readline())
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"])
            raise RecordError(f"{self.path}: line {place + 2} is not a frame: {reason}") from error

    def _header(self) -> float:
        try:
            header = json.loads(self._file.readline())
            version, interval_s = header["kvtop_recording"], float(header["interval_s"])
        except (ValueError, KeyError, TypeError) as error:
            raise RecordError(f"{self.path}: line 1 is not the header of a kvtop recording") from error
        if version != FORMAT:
            raise RecordError(f"{self.path}: format {version} is not known to this kvtop; it reads {FORMAT}")
        return interval_s

    def _index(self) -> None:
        """Offsets and times of all whole lines; a half-written last line (a killed kvtop) is left out."""
        offset = self._file.tell()
        for line in self._file:
            if line.endswith(b"}\n"):
                self._offsets.append(offset)
                self._times.append(_time_of(line))
            offset += len(line)
        if not self._offsets:
            raise RecordError(f"{self.path}: holds no frame")


def _time_of(line: bytes) -> float:
    """The frame's time without decoding the frame."""
    key = b'"taken_unix_s":'
    begin = line.find(key) + len(key)
    end = line.find(b",", begin)
    try:
        return float(line[begin:end])
    except ValueError:
        return 0.0


def _plain(path: Path) -> IO[bytes]:
    """The file itself, or a compressed one unpacked into a nameless temporary file (a cut end is forgiven)."""
    try:
        if path.suffix != ".gz":
            return path.open("rb")
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the recording
        with gzip.open(path, "rb") as packed:
            _copy(packed, unpacked)
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from error
    unpacked.seek(0, os.SEEK_SET)
    return unpacked


def _copy(packed: gzip.GzipFile, unpacked: IO[bytes]) -> None:
    try:
        while block := packed.read1(1 << 16):
            unpacked.write(block)
    except EOFError:
        return
