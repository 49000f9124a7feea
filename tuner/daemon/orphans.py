"""Servers that nobody watches any more: of a killed daemon, or left running on purpose."""

from __future__ import annotations

from launcher.clock import Clock
from launcher.errors import MachineError
from launcher.server import ServerRecord, reap
from tuner.journal import Journal


async def reap_left(journal: Journal, clock: Clock) -> int:
    """End the study's servers; how many the journal knew. Raises MachineError when one does not end.

    The journal knows them; one launched in the last moment before a kill is known by its token alone.
    """
    left = [ServerRecord.from_dict(told) for told in journal.left_servers()]
    unrecorded = ServerRecord(pid=-1, start_time=0.0, pgid=-1, token=str(journal.fact("token")), port=0)
    for record in (*left, unrecorded):
        report = await reap(record, clock)
        if report.leftovers:
            raise MachineError(f"a server of an earlier run cannot be ended: {'; '.join(report.leftovers)}")
    if left:
        journal.servers_gone()
    return len(left)
