"""Recordings: one JSON line a frame, after a header line. What was computed is not stored: replay computes
it again.

Line 1: `{"kvtop_recording": 1, "interval_s": 1.0}`. Every further line: `{"same_study": bool, "frame": Frame}`; a
study is written only with the frames in which it changed. A name that ends in `.gz` is compressed.
"""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from tui.errors import RecordError
from tui.frame import Frame

FORMAT = 1
FLUSH_EVERY = 5
"""Frames; what a killed kvtop may lose."""


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
        self._line({"same_study": same, "frame": replace(frame, study=None) if same else frame})

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
        self._codec = TypeAdapter(Frame)
        self._file = _plain(path)
        self.interval_s = self._header()
        self._offsets: list[int] = []
        self._times: list[float] = []
        self._index()
        if not self._offsets:
            raise RecordError(f"{path}: holds no frame")

    def __len__(self) -> int:
        return len(self._offsets)

    def close(self) -> None:
        self._file.close()

    @property
    def times_unix_s(self) -> list[float]:
        return self._times

    def frame(self, place: int) -> Frame:
        frame, same = self._read(place)
        while same and frame.study is None and place > 0:
            place -= 1
            before, same = self._read(place)
            frame = replace(frame, study=before.study)
        return frame

    def _read(self, place: int) -> tuple[Frame, bool]:
        self._file.seek(self._offsets[place])
        try:
            line = json.loads(self._file.readline())
            return self._codec.validate_python(line["frame"]), bool(line["same_study"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            reason = str(error).splitlines()[0]
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
    """The file itself, or a compressed one unpacked into a nameless temporary file (a cut end is forgiven).
    """
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
        while block := packed.read(1 << 20):
            unpacked.write(block)
    except EOFError:
        return
