from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.errors import MachineError, Unauthorized, Unreachable
from launcher.gpus import GpuSample
from launcher.observe.sample import RankSample, ServerSample
from launcher.server import ServerRecord
from tui.build import SnapshotBuilder
from tui.collector import Collector
from tui.discover import LocalServer, is_sglang
from tui.frame import Frame, ServerReading
from tui.polls import GpuPoll, ServerPoll, StudyPoll
from tui.settings import Settings
from tui.snapshot import Reach
from tuner.journal import Journal

URL, OTHER = "http://127.0.0.1:1", "http://127.0.0.1:2"


@dataclass
class FakeReader:
    """Answers, fails or hangs as told."""

    url: str
    answer: Callable[[], ServerSample]
    closed: list[str] = field(default_factory=list)

    def read(self) -> ServerSample:
        return self.answer()

    def close(self) -> None:
        self.closed.append(self.url)


@dataclass
class FakeGpus:
    answers: Iterator[tuple[GpuSample, ...] | Exception]

    def read(self, *, memory_only: bool = False) -> tuple[GpuSample, ...]:
        del memory_only
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None: ...


def good(url: str = URL) -> ServerSample:
    return ServerSample(time.monotonic(), url, ranks=(RankSample(running_requests=3, queued_requests=0),))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def opened() -> Iterator[Callable[..., Collector]]:
    made: list[Collector] = []

    def start(
        answers: dict[str, Callable[[], ServerSample]],
        *,
        urls: tuple[str, ...] | None = None,
        gpus: FakeGpus | None = None,
        find: Callable[[], tuple[LocalServer, ...]] = lambda: (),
        study: Path | None = None,
    ) -> Collector:
        settings = Settings(urls=tuple(answers) if urls is None else urls, interval_s=0.2, study=study)
        collector = Collector(
            settings,
            (lambda _: gpus) if gpus is not None else None,
            open_reader=lambda url, _key, _timeout_s: FakeReader(url, answers[url]),
            find=find,
            with_study=study is not None,
        )
        made.append(collector)
        collector.start()
        return collector

    yield start
    for collector in made:
        collector.stop()


def test_a_dead_server_never_stalls_the_rest(opened: Callable[..., Collector]) -> None:
    release = threading.Event()

    def hang() -> ServerSample:
        release.wait(5)
        raise Unreachable("http://127.0.0.1:2: timed out")

    collector = opened({URL: good, OTHER: hang})
    until(lambda: collector.frame().servers[0].sample is not None)
    first = collector.frame().servers[0].sample
    until(lambda: collector.frame().servers[0].sample is not first)
    assert collector.frame().servers[1].sample is None
    release.set()
    until(lambda: collector.frame().servers[1].problem is not None)


def test_the_last_good_figures_are_kept_with_their_age_and_the_reason() -> None:
    answers: list[ServerSample | Exception] = [good(), Unreachable("refused"), Unauthorized("401")]

    def answer() -> ServerSample:
        told = answers.pop(0)
        if isinstance(told, Exception):
            raise told
        return told

    poll = ServerPoll(URL, FakeReader(URL, answer), lambda: 1.0)
    poll.step()
    assert poll.reading.problem is None
    sample = poll.reading.sample
    poll.step()
    assert poll.reading.sample is sample
    assert (poll.reading.problem, poll.reading.problem_kind) == ("refused", "Unreachable")
    poll.step()
    assert poll.reading.problem_kind == "Unauthorized"


def test_a_server_that_stays_away_is_asked_less_often() -> None:
    def refuse() -> ServerSample:
        raise Unreachable("refused")

    poll = ServerPoll(URL, FakeReader(URL, refuse), lambda: 1.0)
    waits = [poll.step() for _ in range(12)]
    assert waits[0] == pytest.approx(1.0, abs=0.1)
    assert 4.0 < waits[-1] <= 5.0


def test_servers_of_this_machine_are_found_and_watched(opened: Callable[..., Collector]) -> None:
    collector = opened({URL: good}, urls=(), find=lambda: (LocalServer(URL, (11, 12)),))
    until(lambda: bool(collector.frame().servers) and collector.frame().servers[0].sample is not None)
    assert collector.frame().servers[0].pids == (11, 12)


@pytest.mark.parametrize(("interval_s", "least_s", "most_s"), [(0.2, 1.5, 2.0), (1.0, 1.5, 2.0), (5.0, 4.5, 5.0)])
def test_gpus_are_read_rarely_and_sooner_while_there_are_none(interval_s: float, least_s: float, most_s: float) -> None:
    gpus = FakeGpus(iter([(), (GpuSample(0, "x"),)]))
    poll = GpuPoll(lambda _: gpus, None, lambda: interval_s)
    assert poll.step() <= interval_s
    assert least_s < poll.step() <= most_s
    assert poll.samples


def test_before_the_first_answer_nothing_is_said_of_the_machine() -> None:
    poll = GpuPoll(lambda _: FakeGpus(iter([()])), None, lambda: 1.0)
    assert poll.problem == "the GPUs have not answered yet"
    poll.step()
    assert poll.problem is None


BOXES = (LocalServer(URL, (11,), "/tmp/box"), LocalServer(OTHER, (12,), "/tmp/other"), LocalServer(URL + "3", (13,)))


@pytest.mark.parametrize(
    ("settings", "found", "box"),
    [
        (Settings(), BOXES[:1], "simulated:/tmp/box"),
        (Settings(), BOXES, "simulated:/tmp/box"),
        (Settings(urls=(OTHER,)), BOXES, "simulated:/tmp/other"),
        (Settings(urls=(OTHER.replace("127.0.0.1", "localhost"),)), BOXES, "simulated:/tmp/other"),
        (Settings(urls=(URL + "3",)), BOXES, None),
        (Settings(urls=("http://10.0.0.7:1",)), BOXES, None),
        (Settings(study=Path("/tmp/study")), BOXES, "simulated:/tmp/study/gpus"),
        (Settings(gpu_source="nvml"), BOXES, None),
    ],
)
def test_simulated_gpus_are_those_of_what_is_watched(
    settings: Settings, found: tuple[LocalServer, ...], box: str | None
) -> None:
    """At the first look already, however many other simulated boxes this machine has."""
    sources: list[str | None] = []

    def open_gpus(source: str | None) -> FakeGpus:
        sources.append(source)
        simulated = source is not None and source.startswith("simulated:")
        return FakeGpus(iter([(GpuSample(0, "x (simulated)"),) if simulated else ()] * 500))

    collector = Collector(
        replace(settings, interval_s=0.2),
        open_gpus,
        open_reader=lambda url, _key, _timeout_s: FakeReader(url, good),
        find=lambda: found,
        with_study=False,
    )
    collector.start()
    collector.wait_first(5.0)
    collector.stop()
    assert [source for source in sources if source != settings.gpu_source] == ([] if box is None else [box])
    assert bool(collector.frame().gpus) is (box is not None)


def test_a_driver_that_fails_is_told_and_tried_again(opened: Callable[..., Collector]) -> None:
    healthy = (GpuSample(0, "x"),)
    gpus = FakeGpus(iter([MachineError("the driver does not answer"), *[healthy] * 500]))
    collector = opened({}, gpus=gpus)
    until(lambda: bool(collector.frame().gpus))
    assert collector.frame().gpu_problem is None


def test_stop_closes_the_readers() -> None:
    reader = FakeReader(URL, good)
    collector = Collector(Settings(urls=(URL,)), None, open_reader=lambda *_: reader, find=lambda: (), with_study=False)
    collector.start()
    collector.stop()
    assert reader.closed == [URL]


def test_stale_becomes_down_with_age() -> None:
    reading = ServerReading(URL, good(), 100.0, "timed out", "Unreachable")
    builder = SnapshotBuilder()
    reach = [builder.add(Frame(now, (reading,))).servers[0].reach for now in (102.0, 130.0)]
    assert reach == [Reach.STALE, Reach.DOWN]
    assert builder.add(Frame(131.0, (replace(reading, problem=None),))).servers[0].reach is Reach.UP


@pytest.mark.parametrize(
    ("cmdline", "serves"),
    [
        ("python -m sglang.launch_server --model-path m --port 30000", True),
        ("/opt/venv/bin/python /opt/venv/bin/sglang serve m", True),
        ("python -m launcher.simulated --preset x --port 1", True),
        ("sglang::scheduler_TP0", False),
        ("bash -c python -m sglang.launch_server", False),
        ("vim sglang.txt", False),
    ],
)
def test_which_processes_are_servers(cmdline: str, serves: bool) -> None:
    assert is_sglang(cmdline.split()) is serves


def test_a_server_of_this_machine_is_found_by_its_socket(tmp_path: Path) -> None:
    """A process that looks like SGLang and listens, started here and ended here."""
    import subprocess
    import sys

    from tui.discover import local_servers

    script = tmp_path / "listen.py"
    script.write_text(
        "import socket, sys\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\ns.listen()\n"
        "print(s.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    )
    argv = [sys.executable, str(script), "sglang.launch_server", "--gpu-state", "box"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        found = {server.url: server for server in local_servers()}[f"http://127.0.0.1:{port}"]
        assert process.pid in found.pids
        assert found.gpu_state == str(tmp_path / "box")
        process.communicate("")


def test_a_study_that_has_ended_stays_on_the_screen(
    monkeypatch: pytest.MonkeyPatch, feed: SimpleNamespace, tmp_path: Path
) -> None:
    running = iter([(), (tmp_path,), ()])
    monkeypatch.setattr("tuner.journal.find_running_studies", lambda: next(running))
    monkeypatch.setattr("tuner.journal.read_study", lambda directory: replace(feed.STUDY, directory=directory))
    poll, seen = StudyPoll(None), []
    for _ in range(3):
        poll.step()
        seen.append(poll.view.directory if poll.view else None)
    assert seen == [None, tmp_path, tmp_path]


def test_a_server_that_has_ended_leaves_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tui.collector.DISCOVER_EVERY_S", 0.05)
    monkeypatch.setattr("tui.collector.GONE_AFTER_S", 0.3)
    alive = threading.Event()
    alive.set()

    def answer() -> ServerSample:
        if alive.is_set():
            return good()
        raise Unreachable("refused")

    collector = Collector(
        Settings(interval_s=0.2),
        None,
        open_reader=lambda url, _key, _timeout_s: FakeReader(url, answer),
        find=lambda: (LocalServer(URL, (11,)),) if alive.is_set() else (),
        with_study=False,
    )
    collector.start()
    until(lambda: bool(collector.frame().servers))
    alive.clear()
    until(lambda: bool(collector.frame().servers and collector.frame().servers[0].problem))
    until(lambda: not collector.frame().servers)
    collector.stop()


def test_a_named_study_shows_its_own_server_and_no_other(opened: Callable[..., Collector], tmp_path: Path) -> None:
    journal = Journal.create(tmp_path, {"study": {"budget": 60.0}, "model_path": "m", "token": "t"})
    journal.server_launched(ServerRecord(pid=1, start_time=0.0, pgid=1, token="t", port=2))
    local = (LocalServer(URL, (10,)), LocalServer(OTHER, (20,)))
    collector = opened({URL: good, OTHER: good}, urls=(), find=lambda: local, study=tmp_path)
    collector.wait_first(5)
    assert [server.url for server in collector.frame().servers] == [OTHER]
    journal.servers_gone()
    journal.close()
    over = opened({URL: good, OTHER: good}, urls=(), find=lambda: local, study=tmp_path)
    over.wait_first(5)
    assert over.frame().servers == ()
