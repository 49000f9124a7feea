"""The journal: what was written is read back, whoever was killed and whatever was damaged in between."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.failure import Stage
from launcher.timeline import MemorySeen, StageSpan, Timeline
from tuner.errors import DiskFull, JournalError, StudyLocked
from tuner.journal import Journal, find_running_studies, find_study, new_study_directory, read_study
from tuner.journal.codec import decode, encode
from tuner.journal.files import COPY
from tuner.journal.home import JOURNAL, LOCK
from tuner.journal.lock import Lock, lock_gpus
from tuner.journal.schema import VERSION
from tuner.journal.view import StudyState
from tuner.trial import (
    Interval,
    LevelEnd,
    LevelResult,
    Percentiles,
    Proposal,
    Purpose,
    Setting,
    TrialState,
)

numbers = st.floats(allow_nan=False)
LEVELS = st.builds(
    LevelResult,
    concurrency=st.integers(1, 1_000),
    end=st.sampled_from(LevelEnd),
    completion_rate=st.builds(Interval, numbers, numbers, numbers),
    measured_s=numbers,
    spent_s=numbers,
    responses_per_s=numbers,
    finished_requests=st.integers(0, 10_000),
    ttft_s=st.none() | st.builds(Percentiles, numbers, numbers, numbers, numbers),
    errors_by_kind=st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=3),
    headroom_min_gib=st.dictionaries(st.integers(0, 7), numbers, max_size=8),
    remaining_s=st.none() | st.builds(Interval, numbers, numbers, numbers),
)
VALUES = st.integers(-9, 9) | st.booleans() | st.text(max_size=5) | st.lists(st.integers(), max_size=3)
FLAGS = st.dictionaries(st.text(), VALUES)
PROPOSALS = st.builds(
    Proposal,
    setting=st.builds(Setting, st.none() | numbers, st.text(max_size=9), st.integers(0, 99), FLAGS),
    concurrencies=st.lists(st.integers(1, 99), max_size=4).map(tuple),
    purpose=st.sampled_from(Purpose),
    reason=st.text(),
    expected_s=numbers,
    survival_probability=st.none() | numbers,
)


@given(LEVELS | PROPOSALS)
def test_values_survive_the_journal_infinite_bounds_and_flags_types_too(value):
    again = decode(type(value), encode(value))
    assert again == value
    if isinstance(value, Proposal):
        kinds = {name: type(flag) for name, flag in value.setting.flags.items()}
        assert {name: type(flag) for name, flag in again.setting.flags.items()} == kinds


def test_a_value_that_is_none_is_a_journal_error():
    with pytest.raises(JournalError):
        decode(LevelResult, '{"concurrency": "many"}')
    with pytest.raises(JournalError):
        decode(LevelResult, "{")


@pytest.fixture
def journal(study):
    return study.journal


def begin(journal, level_results, *, fraction=0.88):
    """One trial with these levels, left open."""
    proposal = Proposal(Setting(fraction, "bfloat16"), (16, 32), Purpose.EXPLORE, "because", 800.0)
    trial_id = journal.begin_trial(proposal, 7_000.0)
    start_id = journal.begin_start(trial_id)
    timeline = Timeline((StageSpan(Stage.WEIGHTS, 1.0, None),), MemorySeen(capacity_tokens=159_195), ready_s=3.0)
    journal.end_start(start_id, timeline, 5.0, 300.0)
    for result in level_results:
        journal.end_level(journal.begin_level(trial_id, start_id, result.concurrency), result)
    return trial_id, start_id


def test_a_trial_is_read_back_as_it_was(journal, some_level):
    trial_id, start_id = begin(journal, [some_level])
    journal.end_stop(start_id, 12.0)
    journal.end_trial(trial_id, TrialState.MEASURED, None)
    (trial,) = journal.trials()
    assert trial.levels == (some_level,)
    assert trial.timeline.memory.capacity_tokens == 159_195
    assert trial.state is TrialState.MEASURED
    assert trial.minutes.stop_s == 12.0
    assert read_study(journal.directory).trials == (trial,)
    assert journal.open_trial() is None


def test_a_level_that_was_intended_and_not_finished_is_no_result(journal, some_level):
    trial_id, start_id = begin(journal, [some_level])
    journal.begin_level(trial_id, start_id, 64)
    assert [level.concurrency for level in journal.open_trial().levels] == [some_level.concurrency]


def test_a_server_is_remembered_until_its_end_is_proved(journal, record):
    journal.server_launched(record)
    grown = record.with_children(())
    journal.server_launched(replace(grown, port=1_234))
    assert [told["port"] for told in journal.left_servers()] == [1_234]
    journal.servers_gone()
    assert journal.left_servers() == ()


@pytest.mark.parametrize("damage", ["garbage in the log", "cut log", "overwritten tail", "cut database", "emptied"])
def test_a_damaged_tail_loses_no_finished_level(journal, some_level, damage):
    begin(journal, [some_level])
    journal.decide("level", "something written after the last level")
    directory = journal.directory
    database, log = directory / JOURNAL, directory / f"{JOURNAL}-wal"
    # As after kill -9: the files as they lie there, with no connection that could tidy them up.
    kept = {path: path.read_bytes() for path in (database, log)}
    journal.close()
    for path, content in kept.items():
        path.write_bytes(content)
    if damage == "garbage in the log":
        log.write_bytes(kept[log][:-700] + os.urandom(700))
    elif damage == "cut log":
        log.write_bytes(kept[log][:-700])
    elif damage == "overwritten tail":
        database.write_bytes(kept[database][:-6_000] + os.urandom(6_000))
        log.unlink()
    elif damage == "cut database":
        database.write_bytes(kept[database][:-6_000])
        log.unlink()
    else:
        database.write_bytes(b"")
        log.unlink()
    again = Journal(directory)
    assert [level.concurrency for level in again.open_trial().levels] == [some_level.concurrency]
    if damage in ("overwritten tail", "cut database", "emptied"):
        assert "damaged" in again.mended
        assert any(one.kind == "journal" for one in read_study(directory).decisions)
        assert list(directory.glob("damaged-*"))
    again.close()


def test_damage_without_a_copy_is_one_sentence(journal):
    journal.close()
    (journal.directory / COPY).unlink()
    (journal.directory / JOURNAL).write_bytes(os.urandom(9_000))
    for extra in ("-wal", "-shm"):
        (journal.directory / f"{JOURNAL}{extra}").unlink(missing_ok=True)
    with pytest.raises(JournalError, match="damaged"):
        Journal(journal.directory)
    with pytest.raises(JournalError):
        read_study(journal.directory)


def test_a_full_disk_keeps_nothing_half_written_and_the_write_may_be_repeated(journal, some_level):
    trial_id, start_id = begin(journal, [])
    level_id = journal.begin_level(trial_id, start_id, 16)
    pages = journal._connection.execute("PRAGMA page_count").fetchone()[0]
    journal._connection.execute(f"PRAGMA max_page_count = {pages}")
    huge = replace(some_level, group_rates={f"group {at}": 1.0 for at in range(5_000)})
    with pytest.raises(DiskFull, match="full"):
        journal.end_level(level_id, huge)
    assert journal.open_trial().levels == ()
    journal._connection.execute("PRAGMA max_page_count = 1000000")
    journal.end_level(level_id, huge)
    assert journal.open_trial().levels == (huge,)


def test_a_reader_in_the_middle_of_reading_does_not_block_the_writer(journal, some_level):
    begin(journal, [some_level])
    reader = sqlite3.connect(f"file:{journal.path}?mode=ro", uri=True, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT COUNT(*) FROM levels").fetchone()
    begin(journal, [some_level], fraction=0.9)
    assert reader.execute("SELECT COUNT(*) FROM levels").fetchone()[0] == 1
    reader.close()
    assert len(read_study(journal.directory).trials) == 2


def test_a_journal_of_a_newer_kvtune_is_refused_and_left_alone(journal):
    journal._connection.execute(f"PRAGMA user_version = {VERSION + 1}")
    journal.close()
    for open_it in (Journal, read_study):
        with pytest.raises(JournalError, match="upgrade"):
            open_it(journal.directory)


HOLD = """
import sys, time
from pathlib import Path
from tuner.journal.lock import Lock
lock = Lock(Path(sys.argv[1]), "study")
print("held", flush=True)
time.sleep(60)
"""


def test_a_second_daemon_is_refused_with_the_pid_of_the_first_and_a_killed_one_frees_the_lock(tmp_path):
    path = tmp_path / LOCK
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StudyLocked, match=f"process {holder.pid}"):
            Lock(path, "study x")
        with pytest.raises(StudyLocked):
            lock_gpus(["b", "a"], _home_with(tmp_path, path))
    finally:
        holder.kill()
        holder.communicate()
    Lock(path, "study x").release()


def _home_with(tmp_path, path):
    """A home in which GPU b is held by whoever holds `path`."""
    gpus = tmp_path / "home" / "gpus"
    gpus.mkdir(parents=True)
    os.link(path, gpus / "b.lock")
    return tmp_path / "home"


def test_studies_are_found_by_name_by_beginning_and_newest_first(tmp_path, monkeypatch):
    monkeypatch.setenv("KVTUNE_HOME", str(tmp_path))
    made = []
    for name in ("tiny-llama", "kimi"):
        directory = new_study_directory(name)
        Journal.create(directory, {}).close()
        made.append(directory)
    assert find_study("kimi") == made[1]
    assert find_study(str(made[0])) == made[0]
    assert find_study(made[0].name) == made[0]
    with pytest.raises(Exception, match="there is no such study"):
        find_study("llama-70b")
    assert find_running_studies() == ()
    lock = Lock(made[1] / LOCK, "study")
    assert find_running_studies() == (made[1],)
    lock.release()


def test_a_study_whose_daemon_is_gone_is_interrupted_and_one_that_ended_is_done(journal):
    assert read_study(journal.directory).state is StudyState.INTERRUPTED
    journal.set_fact("done", "the budget is used up")
    assert read_study(journal.directory).state is StudyState.DONE
