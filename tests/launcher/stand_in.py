"""A stand-in for a server in the lifecycle tests: starts in a tenth of a second, and misbehaves on demand.

usage: stand_in.py MODE [SGLang flags...]. It prints SGLang's "fired up" line, listens on --port and answers
/health_generate. Modes: good; slow (a line every 0.1 s for a second before it serves); mute (never says or does
anything); dies (ends with code 7 before it serves); bind (says that it could not bind and hangs); deaf (never
answers); stubborn (ignores SIGTERM); worker (has a child that dies with it, as SGLang has); straggler (a child
that outlives it); orphan (the same in a session of its own); bereaved (a scheduler that can be killed, upon which it
says so as SGLang does, and waits).
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

FIRED_UP = "The server is fired up and ready to roll!"
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def serve(port: int, *, answers: bool) -> None:
    with socket.create_server(("127.0.0.1", port)) as listener:
        say(FIRED_UP)
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                if not answers:
                    time.sleep(3600)
                connection.sendall(ANSWER)


def before(mode: str) -> None:
    if mode == "mute":
        time.sleep(3600)
    if mode == "dies":
        say("RuntimeError: something is wrong")
        sys.exit(7)
    if mode == "bind":
        say("ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 1): address already in use")
        say(FIRED_UP)
        time.sleep(3600)
    if mode == "slow":
        for step in range(10):
            say(f"loading {step}")
            time.sleep(0.1)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode in ("worker", "straggler", "orphan"):
        alive = "os.getppid() == parent" if mode == "worker" else "True"
        code = f"import os, time\nparent = os.getppid()\nwhile {alive}: time.sleep(0.02)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=mode == "orphan")
    if mode == "bereaved":
        code = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'sglang::schedul')\ntime.sleep(60)"
        threading.Thread(target=mourn, args=(subprocess.Popen([sys.executable, "-c", code]),), daemon=True).start()
        time.sleep(0.3)


def mourn(child: subprocess.Popen[bytes]) -> None:
    child.wait()
    say(f"Subprocess scheduler_1 (pid={child.pid}) crashed with exit code {child.returncode}.")
    say("SIGQUIT received. signum=None, frame=None. It usually means one child failed.")


def main(words: Sequence[str]) -> None:
    mode, port = words[0], int(words[words.index("--port") + 1])
    before(mode)
    serve(port, answers=mode != "deaf")


if __name__ == "__main__":
    main(sys.argv[1:])
