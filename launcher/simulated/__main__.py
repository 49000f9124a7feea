"""A server that is computed: `python -m launcher.simulated --preset NAME [--speed S] <SGLang flags>`.

Takes SGLang's flags, prints its log lines on stderr, serves its endpoints, and dies as it dies.
`--version` tells which SGLang it plays; `--help` lists what `--fault` can make go wrong.
"""

from __future__ import annotations

import asyncio
import sys

from launcher.errors import LauncherError
from launcher.exits import run_program
from launcher.simulated.server.arguments import parse_arguments
from launcher.simulated.server.process import ServerProcess


async def _serve() -> int:
    return await ServerProcess(parse_arguments(sys.argv[1:])).run()


def main() -> None:
    run_program("launch_server.py: error", lambda: asyncio.run(_serve()), (LauncherError,))


if __name__ == "__main__":
    main()
