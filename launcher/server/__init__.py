"""One server from its launch to the proof that nothing of it is left.

    server = await launch(LaunchRequest(...), clock)
    timeline = await server.wait_ready(StartLimits())     # raises StartFailed
    failure = server.poll()                               # None while it lives
    report = await server.stop(StopLimits())

`launching` makes the process, `running` is the handle, `readiness` decides when it serves, `ending` ends it
and proves it, `evidence` gathers what a failure is judged by, `record` is what a journal keeps so that
`reap` can find an orphan.
"""

from launcher.server.ending import reap
from launcher.server.launching import LaunchRequest, launch
from launcher.server.record import ServerRecord, StartLimits, StopLimits, StopReport
from launcher.server.running import Server

__all__ = [
    "LaunchRequest",
    "Server",
    "ServerRecord",
    "StartLimits",
    "StopLimits",
    "StopReport",
    "launch",
    "reap",
]
