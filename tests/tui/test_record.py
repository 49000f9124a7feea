from __future__ import annotations

import gzip
from pathlib import Path
from types import SimpleNamespace

import pytest

from tui.build import SnapshotBuilder
from tui.errors import RecordError
from tui.once import as_json
from tui.record import Recorder, Recording
from tui.source import ReplaySource


@pytest.fixture(params=["run.jsonl", "run.jsonl.gz"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path, feed: SimpleNamespace) -> Path:
    path = tmp_path / request.param
    recorder = Recorder(path, 1.0)
    for second in range(1000, 1060):
        recorder.write(feed.study_running(float(second)))
    recorder.close()
    return path


def test_replay_shows_what_was_seen(recorded: Path, feed: SimpleNamespace) -> None:
    """Frames survive the file exactly, the study and infinite bucket bounds included; so does what follows
    from them.
    """
    with Recording(recorded) as recording:
        assert [recording.frame(i) for i in range(len(recording))] == [
            feed.study_running(float(second)) for second in range(1000, 1060)
        ]
    live, builder = None, SnapshotBuilder(1.0)
    for second in range(1000, 1060):
        live = builder.add(feed.study_running(float(second)))
    assert live is not None
    source = ReplaySource(recorded)
    assert as_json(source.last()) == as_json(live)
    source.stop()


def test_the_study_is_written_once_while_it_does_not_change(recorded: Path) -> None:
    text = gzip.decompress(recorded.read_bytes()) if recorded.suffix == ".gz" else recorded.read_bytes()
    assert text.count(b'"study":{') == 1
    with Recording(recorded) as recording:
        assert recording.frame(30).study is not None


def test_replay_goes_on_pauses_seeks_and_changes_its_speed(recorded: Path, feed: SimpleNamespace) -> None:
    source = ReplaySource(recorded)
    first = source.next()
    assert first is not None
    assert first.taken_unix_s == feed.NOON + 1000
    assert source.faster(3) == "speed 8×"
    later = source.next()
    assert later is not None
    assert later.taken_unix_s == feed.NOON + 1008
    back = source.seek(-5.0)
    assert back is not None
    assert back.taken_unix_s == feed.NOON + 1003
    end = source.seek(1e9)
    assert end is not None
    assert end.taken_unix_s == feed.NOON + 1059
    assert source.next() is None
    assert source.status() == "replay 0:59 of 0:59 at 8×"
    source.stop()


def test_a_cut_recording_is_read_up_to_the_cut(recorded: Path, tmp_path: Path) -> None:
    whole = recorded.read_bytes()
    cut = tmp_path / f"cut{recorded.suffix}"
    cut.write_bytes(whole[: len(whole) * 3 // 4])
    with Recording(cut) as recording:
        assert 0 < len(recording) < 60


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "line 1 is not the header"),
        (b"GIF89a\n", "line 1 is not the header"),
        (b'{"kvtop_recording": 99, "interval_s": 1.0}\n', "format 99 is not known"),
        (b'{"kvtop_recording": 1, "interval_s": 1.0}\n', "holds no frame"),
    ],
)
def test_what_is_no_recording_is_refused_in_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=sentence):
        Recording(path)


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"kvtop_recording": 1, "interval_s": 1.0}\n{"taken_unix_s": 1.0, "servers": 5}\n')
    with Recording(path) as recording, pytest.raises(RecordError, match="line 2 is not a frame"):
        recording.frame(0)


def test_a_recording_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot be written"):
        Recorder(tmp_path / "none" / "x.jsonl", 1.0)
