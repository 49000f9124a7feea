"""`kvtop`: the command line. Textual is imported only when a screen is really drawn."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from launcher.errors import LauncherError
from launcher.exits import MACHINE, OK, run_program, say
from launcher.gpus import GpuReader
from tui.collector import Collector
from tui.errors import SettingsError, TuiError
from tui.settings import Settings, gather
from tui.snapshot import Reach, Snapshot

FIRST_ANSWER_S = 3.0
"""How long --once waits for servers and GPUs to answer for the first time."""
DIAGNOSE_WINDOW_S = 3.0
DEMO_WINDOW_S = 5.0
"""A simulated engine that has just started has nothing to tell at once."""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Entry point; leaves with the exit codes of `launcher.exits`."""
    run_program("kvtop", lambda: run(argv, os.environ), (TuiError, LauncherError))


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "kvtop",
        description="A live monitor of SGLang's KV cache: where memory is, who waits, which limit binds.",
        epilog="KVTOP_URL, KVTOP_API_KEY, NO_COLOR are heeded; flags win over them, they over the file.",
    )
    add = made.add_argument
    add("-u", "--url", action="append", metavar="URL", help="a server; repeatable (default: find local ones)")
    add("-i", "--interval", metavar="S", help="seconds between readings, 0.2 to 60 (default 1)")
    add("--once", action="store_true", help="print one look as text and leave")
    add("--json", action="store_true", help="print one look as JSON and leave")
    add("--window", metavar="S", help="seconds that --once and --diagnose watch, for rates (default 0 and 3)")
    add("--diagnose", action="store_true", help="print what binds as a card to paste, and leave")
    add("--study", type=Path, metavar="DIR", help="show this study (default: the one a daemon runs here)")
    add("--record", type=Path, metavar="FILE", help="write every reading to FILE (.gz compresses)")
    add(
        "--replay",
        type=Path,
        metavar="FILE",
        help="show a recording; p pauses, arrows seek, + - change speed",
    )
    add("--demo", action="store_true", help="start a simulated engine and watch it")
    add("--api-key", metavar="KEY", help="bearer token for the servers (better: KVTOP_API_KEY)")
    add("--config", type=Path, metavar="FILE", help="TOML (default ~/.config/kvtune/kvtop.toml)")
    add("--show-config", action="store_true", help="print the effective settings and leave")
    add("--no-gpu", action="store_true", help="do not read GPUs")
    add("--gpus", metavar="SOURCE", help='where GPUs are read: "nvml" or "simulated:DIR"')
    add("--ascii", action="store_true", help="no Unicode")
    add("--no-color", action="store_true", help="no colours")
    add("--no-mouse", action="store_true", help="leave the mouse to the terminal (to select and copy text)")
    add("-V", "--version", action="store_true", help="print the version and leave")
    return made


def run(argv: Sequence[str] | None, env: Mapping[str, str]) -> int:
    args = parser().parse_args(argv)
    if args.version:
        print(f"kvtop {_version()}")
        return OK
    _refuse_contradictions(args)
    settings = gather(args, env)
    if settings.study is not None:
        settings = replace(settings, study=named_study(settings.study))
    if args.show_config:
        print(settings.shown(), end="")
        return OK
    one_shot = args.once or args.json or args.diagnose
    if not one_shot and not can_draw(env):
        say("kvtop: no terminal to draw on; printing one look (--once)")
        one_shot = True
    if args.demo:
        return _demo(args, settings, one_shot)
    if args.replay:
        return _replay(args, settings, one_shot)
    return _one_shot(args, settings) if one_shot else _screen(args, settings)


def _refuse_contradictions(args: argparse.Namespace) -> None:
    """SettingsError where two flags name different things to show."""
    if args.record and args.replay:
        raise SettingsError("--record: a replay is a recording already; copy its file")
    if args.demo:
        for flag in ("url", "study", "replay", "gpus"):
            if getattr(args, flag):
                raise SettingsError(f"--{flag}: --demo shows an engine of its own; leave one of them out")
    if args.replay and (args.url or args.study):
        flag = "url" if args.url else "study"
        raise SettingsError(f"--{flag}: --replay shows what was recorded; leave one of them out")


def named_study(name: Path) -> Path:
    """The directory of `--study DIR` (or of a study's id, or its beginning). SettingsError where there is none."""
    from tuner.errors import TunerError
    from tuner.journal import find_study

    try:
        return find_study(str(name))
    except TunerError as error:
        where = "that directory holds no study" if name.is_dir() else str(error)
        raise SettingsError(f"--study: {name}: {where}") from None


def can_draw(env: Mapping[str, str]) -> bool:
    """Textual draws on stderr and asks nobody: a screen needs a terminal on both sides, and one that can
    move.
    """
    terminals = sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()
    return terminals and env.get("TERM", "") not in ("", "dumb")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kvtune")
    except PackageNotFoundError:
        return "(not installed)"


def open_gpus(source: str | None) -> GpuReader:
    from launcher.nvml import open_gpus as opened

    return opened(source)


def collector(settings: Settings) -> Collector:
    return Collector(settings, open_gpus if settings.gpu else None)


def _one_shot(args: argparse.Namespace, settings: Settings) -> int:
    window_s = settings.window_s or (DIAGNOSE_WINDOW_S if args.diagnose else 0.0)
    snapshot = look_once(settings, window_s, args.record)
    tell_problems(snapshot)
    print(rendered(snapshot, args, settings), end="")
    return OK if _is_told(snapshot, settings, diagnosis=args.diagnose) else MACHINE


def _is_told(snapshot: Snapshot, settings: Settings, *, diagnosis: bool) -> bool:
    """Whether what was asked for could be read. A diagnosis is of servers: GPUs alone make none."""
    if settings.study is not None and snapshot.study is None:
        return False
    if any(server.is_live for server in snapshot.servers):
        return True
    return not diagnosis and bool(snapshot.gpus or snapshot.study)


def look_once(settings: Settings, window_s: float, record: Path | None = None) -> Snapshot:
    """One snapshot; with a window the last of several readings, so that there are rates."""
    from tui.source import LiveSource

    reading = collector(settings)
    source = LiveSource(reading, settings, record)
    source.start()
    try:
        reading.wait_first(FIRST_ANSWER_S)
        snapshot = source.next()
        deadline = time.monotonic() + window_s
        while (left_s := deadline - time.monotonic()) > 0:
            time.sleep(min(settings.interval_s, left_s))
            snapshot = source.next()
    finally:
        source.stop()
    return snapshot


def tell_problems(snapshot: Snapshot) -> None:
    """On stderr: the servers that do not answer, and what else could not be read."""
    for server in snapshot.servers:
        if server.reach in (Reach.DOWN, Reach.LOCKED, Reach.FOREIGN):
            say(f"kvtop: {server.problem}")
    for problem in snapshot.problems:
        say(f"kvtop: {problem}")


def rendered(snapshot: Snapshot, args: argparse.Namespace, settings: Settings) -> str:
    from tui.panels.look import Look

    if args.json:
        from tui.once import as_json

        return as_json(snapshot)
    if args.diagnose:
        from tui.diagnose.card import card

        return card(snapshot, ascii_only=settings.ascii)
    from tui.once import as_text

    width = max(60, shutil.get_terminal_size((100, 24)).columns)
    return as_text(snapshot, width, Look(color=False, ascii=settings.ascii, keys=False))


def _screen(args: argparse.Namespace, settings: Settings) -> int:
    from tui.app import run_app
    from tui.source import LiveSource

    return run_app(LiveSource(collector(settings), settings, args.record), settings)


def _replay(args: argparse.Namespace, settings: Settings, one_shot: bool) -> int:
    from tui.source import ReplaySource

    source = ReplaySource(args.replay)
    if one_shot:
        snapshot = source.last()
        source.stop()
        print(rendered(snapshot, args, settings), end="")
        return OK
    from tui.app import run_app

    return run_app(source, settings)


def _demo(args: argparse.Namespace, settings: Settings, one_shot: bool) -> int:
    from tui.demo import demo_box

    say("kvtop: starting a simulated engine; every figure that follows is simulated")
    with demo_box() as box:
        shown = replace(settings, urls=box.urls, gpu_source=box.gpu_source)
        if one_shot:
            return _one_shot(args, replace(shown, window_s=settings.window_s or DEMO_WINDOW_S))
        return _screen(args, shown)
