"""The loop over searcher and testbed: what is tried, recorded, retried, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher import exits
from launcher.errors import CleanSlateError
from launcher.failure import Culprit, Kind
from tuner.daemon.loop import Limits
from tuner.errors import DiskFull
from tuner.journal import read_study
from tuner.trial import LevelEnd, Purpose, TrialState


async def test_a_study_tries_records_and_ends(study):
    ending = await study.daemon().run()
    assert ending.code == exits.OK
    assert ending.done
    assert study.testbed.log.count("stop") == 3
    assert not study.testbed.running
    trials = study.journal.trials()
    assert [trial.proposal.setting.mem_fraction_static for trial in trials] == [0.85, 0.88, 0.90]
    assert all(trial.state is TrialState.MEASURED for trial in trials)
    assert [level.concurrency for level in trials[0].levels] == [16, 32]
    assert trials[0].minutes.start_s == 300.0
    assert trials[0].minutes.measure_s == 400.0
    assert trials[0].minutes.stop_s == 12.0
    assert trials[0].headroom_min_gib == 4.25
    assert study.published[:2] == [1, 2]


async def test_the_budget_is_never_overdrawn_and_nothing_is_started_that_cannot_finish(study):
    study.budget_s = 2_000.0
    study.searcher.fractions = (0.85,) * 20
    ending = await study.daemon().run()
    assert ending.code == exits.OK
    assert study.clock.now_s() <= 2_000.0
    assert study.testbed.log.count("start 0.85") == 2
    assert "too short for another start" in ending.sentence


async def test_a_level_gets_only_what_is_left(study):
    study.budget_s = 1_000.0
    study.testbed.level_s = 10_000.0
    study.searcher.fractions = (0.85,) * 20
    await study.daemon().run()
    assert study.clock.now_s() <= 1_000.0


async def test_a_crash_under_load_keeps_the_levels_before_it(study, oom):
    study.testbed.levels[32] = oom
    await study.daemon().run()
    first = study.journal.trials()[0]
    assert first.state is TrialState.MEASURED
    assert [level.concurrency for level in first.levels] == [16]
    assert first.failure == oom
    assert read_study(study.directory).last_failure == oom.sentence


async def test_a_configuration_that_fails_is_not_tried_again(study, oom):
    study.testbed.starts = [oom]
    await study.daemon().run()
    assert study.testbed.log.count("start 0.85") == 1
    assert study.journal.trials()[0].state is TrialState.FAILED


async def test_what_is_not_the_configurations_fault_is_tried_again_and_goes_on_where_it_was(study, killed):
    study.testbed.levels[32] = [killed]
    await study.daemon().run()
    first = study.journal.trials()[0]
    assert study.testbed.log[:6] == ["start 0.85", "level 16", "level 32", "stop", "start 0.85", "level 32"]
    assert [level.concurrency for level in first.levels] == [16, 32]
    assert first.failure is None


async def test_a_server_that_hangs_is_started_again_and_its_level_measured_anew(study, some_level):
    study.testbed.levels[32] = [replace(some_level, concurrency=32, end=LevelEnd.STALLED)]
    await study.daemon().run()
    first = study.journal.trials()[0]
    assert study.testbed.log[3:6] == ["stop", "start 0.85", "level 32"]
    assert [(level.concurrency, level.end) for level in first.levels] == [(16, LevelEnd.NARROW), (32, LevelEnd.NARROW)]


async def test_infrastructure_that_stays_broken_ends_the_study_with_the_machines_code(study, killed):
    study.testbed.starts = [killed] * 20
    study.searcher.fractions = (0.85,) * 20
    study.budget_s = 100_000.0
    ending = await study.daemon().run()
    assert ending.code == exits.MACHINE
    assert not ending.done
    assert "somebody killed the server" in ending.sentence
    assert study.testbed.log.count("start 0.85") == 6
    assert {trial.state for trial in study.journal.trials()} == {TrialState.INFRASTRUCTURE}


async def test_a_server_that_always_hangs_is_the_machines_fault_and_no_rate(study, some_level):
    study.testbed.levels = {16: replace(some_level, end=LevelEnd.STALLED)}
    study.budget_s = 2_200.0
    ending = await study.daemon().run()
    assert (ending.code, ending.done) == (exits.MACHINE, False)
    assert "at concurrency 16 nothing was finished any more" in ending.sentence
    assert [trial.levels for trial in study.journal.trials()] == [()]


async def test_a_budget_that_ends_while_a_start_is_made_again_is_the_machines_fault(study, killed):
    study.testbed.starts = [killed, killed]
    study.budget_s = 900.0
    ending = await study.daemon().run()
    assert (ending.code, ending.done) == (exits.MACHINE, False)
    assert "somebody killed the server" in ending.sentence
    assert [trial.state for trial in study.journal.trials()] == [TrialState.INFRASTRUCTURE]


async def test_a_server_that_asks_for_a_key_ends_the_study_at_once(study, some_level):
    level = replace(some_level, end=LevelEnd.STALLED, finished_requests=0, errors_by_kind={"http_401": 80})
    study.testbed.levels = {16: level}
    ending = await study.daemon().run()
    assert (ending.code, ending.done) == (exits.USAGE, False)
    assert "every request with 401" in ending.sentence
    assert "`api_key_env:`" in ending.sentence
    assert study.testbed.log == ["start 0.85", "level 16", "stop"]


async def test_a_budget_too_small_for_one_start_says_what_one_needs(study):
    study.budget_s = 300.0
    ending = await study.daemon().run()
    assert (ending.code, ending.done) == (exits.USAGE, False)
    assert "13 min" in ending.sentence
    assert study.testbed.log == []


async def test_a_wrong_command_line_ends_at_once_as_usage(study, oom):
    study.testbed.starts = [replace(oom, kind=Kind.MODEL_NOT_FOUND, culprit=Culprit.UNKNOWN, sentence="no model")]
    ending = await study.daemon().run()
    assert (ending.code, ending.sentence) == (exits.USAGE, "no model")
    assert study.testbed.log == ["start 0.85", "stop"]


async def test_nothing_feasible_has_its_own_code(study, oom):
    study.testbed.starts = [oom] * 3
    ending = await study.daemon().run()
    assert ending.code == exits.NOTHING_FEASIBLE


async def test_a_stranger_on_the_gpu_pauses_the_trial_instead_of_blaming_it(study):
    study.testbed.starts = [CleanSlateError("GPU 1: process 77 of bob holds 12 GiB"), None]
    ending = await study.daemon().run()
    assert ending.code == exits.OK
    assert len(study.journal.trials()) == 3
    assert any(one.kind == "pause" and "bob" in one.sentence for one in study.journal_decisions())


async def test_a_stranger_who_stays_ends_the_study_on_time(study):
    study.testbed.starts = [CleanSlateError("GPU 1: process 77 of bob holds 12 GiB")] * 1_000
    study.testbed.start_s = 60.0
    ending = await study.daemon().run()
    assert (ending.code, ending.sentence) == (exits.MACHINE, "GPU 1: process 77 of bob holds 12 GiB")
    assert study.clock.now_s() <= 7_200.0


@pytest.mark.parametrize(("limits", "trials"), [(Limits(max_trials=2), 2), (Limits(max_crashes=1), 1), (Limits(), 3)])
async def test_other_ends_than_the_budget(study, oom, limits, trials):
    study.testbed.levels[32] = oom
    study.limits = limits
    await study.daemon().run()
    assert len(study.journal.trials()) == trials


async def test_the_last_confirmation_may_use_whatever_is_left(study):
    study.budget_s = 3_000.0
    study.searcher.purposes = {2: Purpose.CONFIRM}
    study.searcher.concurrencies = (16,)
    study.testbed.level_s = 10_000.0
    await study.daemon().run()
    spent_s = [trial.levels[0].spent_s for trial in study.journal.trials()]
    assert spent_s[:2] == [250.0, 250.0]
    assert spent_s[2] > 1_000.0
    assert 2_940.0 <= study.clock.now_s() <= 3_000.0


async def test_a_probe_starts_with_dummy_weights_and_measures_what_the_search_asks(study):
    study.searcher.purposes = {0: Purpose.PROBE}
    await study.daemon().run()
    assert study.testbed.log[0] == "start 0.85 dummy"
    assert study.testbed.log[1] != "stop"
    assert study.journal.trials()[0].state is TrialState.MEASURED


async def test_ctrl_c_once_finishes_the_level_stops_the_server_and_can_be_resumed(study):
    study.testbed.on_level = lambda _: study.interrupts.interrupt()
    ending = await study.daemon().run()
    assert ending.code == exits.INTERRUPTED
    assert study.testbed.log == ["start 0.85", "level 16", "stop"]
    open_trial = study.journal.open_trial()
    assert open_trial is not None
    assert [level.concurrency for level in open_trial.levels] == [16]

    study.testbed.on_level = None
    ending = await study.daemon().run()
    assert ending.code == exits.OK
    assert study.testbed.log[3:6] == ["start 0.85", "level 32", "stop"]
    assert [level.concurrency for level in study.journal.trials()[0].levels] == [16, 32]


async def test_ctrl_c_twice_does_not_wait(study):
    def twice(_):
        study.interrupts.interrupt()
        study.interrupts.interrupt()

    study.testbed.on_level = twice
    ending = await study.daemon().run()
    assert ending.code == exits.INTERRUPTED
    assert study.testbed.log == ["start 0.85", "level 16", "stop"]
    assert study.journal.open_trial().levels == ()


async def test_spent_time_survives_a_restart(study):
    study.testbed.on_level = lambda _: study.interrupts.interrupt()
    await study.daemon().run()
    spent_s = study.clock.now_s()
    study.clock._now_s += 50_000.0
    assert study.daemon().bench.budget.spent_s == pytest.approx(spent_s)


async def test_serve_best_leaves_the_exported_setting_running_and_says_where(study, record):
    study.limits = Limits(serve_best=True)
    study.searcher.export_setting = lambda history: history[1].proposal.setting
    study.journal.server_launched(record)
    await study.daemon().run()
    assert study.testbed.running
    assert study.testbed.log[-1] == "start 0.88 to keep"
    said = [one.sentence for one in study.journal_decisions() if one.kind == "serve"]
    assert "http://127.0.0.1:31000 (process 4711); `kvtune-auto stop " in said[0]


async def test_an_answer_that_cannot_be_left_running_is_still_the_answer(study):
    study.limits = Limits(serve_best=True)
    study.searcher.export_setting = lambda history: history[1].proposal.setting
    study.testbed.starts = [None, None, None, CleanSlateError("GPU 1: process 77 of bob holds 12 GiB")]
    ending = await study.daemon().run()
    assert (ending.code, ending.done) == (exits.OK, True)
    assert not study.testbed.running
    assert any("was not left running: GPU 1: process 77" in one.sentence for one in study.journal_decisions())
    assert read_study(study.directory).ended == ending.sentence


def _full_for(times, write):
    """The write, on a disk that is full for the first so many of its calls."""
    left = [times]

    def tried(*arguments):
        if left[0]:
            left[0] -= 1
            raise DiskFull("the disk is full")
        return write(*arguments)

    return tried


@pytest.mark.parametrize("name", ["begin_trial", "begin_start", "end_start", "begin_level", "end_level", "end_trial"])
async def test_a_full_disk_frees_the_gpus_waits_and_loses_nothing(study, monkeypatch, name):
    monkeypatch.setattr(study.journal, name, _full_for(2, getattr(study.journal, name)))
    ending = await study.daemon().run()
    assert ending.code == exits.OK
    trials = study.journal.trials()
    assert [[level.concurrency for level in trial.levels] for trial in trials] == [[16, 32]] * 3
    assert study.clock.now_s() >= 3 * 712.0 + 60.0
    assert not study.testbed.running


async def test_a_disk_that_stays_full_ends_the_study_and_frees_the_gpus(study, monkeypatch):
    monkeypatch.setattr(study.journal, "end_level", _full_for(10_000, study.journal.end_level))
    ending = await study.daemon().run()
    assert (ending.code, ending.sentence) == (exits.MACHINE, "the disk is full")
    assert not study.testbed.running
    assert study.clock.now_s() <= 7_260.0


async def test_an_answer_that_cannot_be_written_is_said_and_not_waited_for(study):
    daemon = study.daemon()

    def no_space():
        raise DiskFull("best-config.yaml: cannot be written")

    daemon.bench = replace(daemon.bench, publish=no_space)
    ending = await daemon.run()
    assert (ending.code, ending.done) == (exits.MACHINE, True)
    assert ending.sentence.endswith("but the answer is not written")
    assert any("cannot be written" in line for line in study.lines)
