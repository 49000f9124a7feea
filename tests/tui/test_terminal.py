"""kvtop in a real terminal (a pty): it draws, leaves by key and by signal, and gives the terminal back."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tui.record import Recording

ARGV = ("--no-gpu", "-u", "http://127.0.0.1:9")
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
WITHIN_S = 30.0


@dataclass
class Terminal:
    """A program on the other end of a pty."""

    pid: int
    master: int
    written: bytes = field(default=b"")

    def read_until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + WITHIN_S
        while wanted not in self.written:
            assert time.monotonic() < deadline, self.written[-2000:]
            self.read_some()

    def read_some(self) -> bool:
        """Whether there may be more."""
        if not select.select([self.master], [], [], 0.1)[0]:
            return True
        try:
            block = os.read(self.master, 65536)
        except OSError:
            return False
        self.written += block
        return bool(block)

    def press(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def wait(self) -> int:
        """The exit code, after everything has been read."""
        deadline = time.monotonic() + WITHIN_S
        while self.read_some():
            assert time.monotonic() < deadline
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def terminal(*argv: str, **env: str) -> Iterator[Terminal]:
    pid, master = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm-256color", **env})
        os.execv(sys.executable, [sys.executable, "-m", "tui", *argv])
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    try:
        yield Terminal(pid, master)
    finally:
        os.close(master)


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_q_and_ctrl_c_leave_with_zero_and_give_the_terminal_back(key: bytes) -> None:
    with terminal(*ARGV) as screen:
        screen.read_until(b"what binds")
        screen.press(key)
        assert screen.wait() == 0
    assert screen.written.rindex(LEAVE) > screen.written.index(ENTER)


def test_sigterm_gives_the_terminal_back() -> None:
    with terminal(*ARGV) as screen:
        screen.read_until(b"what binds")
        os.kill(screen.pid, signal.SIGTERM)
        assert screen.wait() == 128 + signal.SIGTERM
    assert LEAVE in screen.written


def test_back_from_ctrl_z_everything_is_drawn_again() -> None:
    with terminal(*ARGV) as screen:
        screen.read_until(b"cannot be reached")
        screen.press(b"\x1a")
        assert os.WIFSTOPPED(os.waitpid(screen.pid, os.WUNTRACED)[1])
        while screen.master in select.select([screen.master], [], [], 0.1)[0]:
            screen.read_some()
        screen.written = b""
        os.kill(screen.pid, signal.SIGCONT)
        for drawn in (b"kvtop", b"what binds", b"GPU memory", b"servers", b"history", b"help"):
            screen.read_until(drawn)
        screen.press(b"q")
        assert screen.wait() == 0


def test_a_terminal_that_goes_away_takes_it_along(tmp_path: Path) -> None:
    """An ssh connection that breaks: SIGHUP, and SIGCONT right behind it. The recording is whole."""
    path = tmp_path / "run.jsonl"
    with terminal(*ARGV, "--record", str(path)) as screen:
        screen.read_until(b"cannot be reached")
    deadline = time.monotonic() + WITHIN_S
    while (ended := os.waitpid(screen.pid, os.WNOHANG))[0] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert os.waitstatus_to_exitcode(ended[1]) == 128 + signal.SIGHUP
    with Recording(path) as recording:
        assert len(recording) >= 1


@pytest.mark.parametrize(("argv", "asked"), [((), True), (("--no-mouse",), False)])
def test_the_terminal_is_asked_for_its_mouse_unless_told_not_to(argv: tuple[str, ...], asked: bool) -> None:
    with terminal(*ARGV, *argv) as screen:
        screen.read_until(b"what binds")
        screen.press(b"q")
        assert screen.wait() == 0
    assert (b"\x1b[?1000h" in screen.written) is asked


def test_no_color_sends_no_colours() -> None:
    with terminal(*ARGV, NO_COLOR="1") as screen:
        screen.read_until(b"what binds")
        screen.press(b"q")
        assert screen.wait() == 0
    assert b"[38;" not in screen.written
    assert b"[48;" not in screen.written


def test_a_recording_is_made_while_the_screen_is_watched(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with terminal(*ARGV, "--interval", "0.2", "--record", str(path)) as screen:
        screen.read_until(b"recording")
        time.sleep(0.7)
        screen.press(b"q")
        assert screen.wait() == 0
    with Recording(path) as recording:
        assert len(recording) >= 3
    with terminal("--replay", str(path)) as screen:
        screen.read_until(b"replay 0:0")
        screen.press(b"q")
        assert screen.wait() == 0


def test_a_record_file_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    with terminal(*ARGV, "--record", str(tmp_path / "none" / "x")) as screen:
        assert screen.wait() == 2
    assert b"cannot be written" in screen.written
    assert b"Traceback" not in screen.written
