"""First on PYTHONPATH while a launch command is asked for its version (launcher.version.detect).

A Python that was started as the SGLang server answers and ends; any other Python of the user's script goes
its way.
"""

import os
import sys


def is_server() -> bool:
    words = [os.path.basename(word) for word in sys.orig_argv]
    return "sglang.launch_server" in words or ("sglang" in words and "serve" in words)


if is_server():
    with open(os.path.join(os.path.dirname(os.path.dirname(__file__)), "probe.py"), encoding="utf-8") as file:
        exec(compile(file.read(), file.name, "exec"))
    sys.stdout.flush()
    os._exit(0)
