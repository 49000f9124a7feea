"""Processes: which of a table belong to a launch of ours, by `launcher.process.find_family`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, compared
from launcher.process import Process, ProcessId, find_family

_TOKEN = "token-of-our-launch"


def judge(case: Case) -> Iterator[Check]:
    table = {row["pid"]: _process(row) for row in case.json("procs.json")}
    ours = case.json("ours.json") if "ours.json" in case.inputs else {}
    must_not = set(case.expect.get("must_not_kill", []))
    if "kill" in case.expect:
        found = _family(table, ours)
        yield compared("kill", sorted(case.expect["kill"]), sorted(found))
        yield compared("must_not_kill", [], sorted(found & must_not))
    if "kill_candidates" in case.expect:
        candidates = set(case.expect["kill_candidates"])
        recorded = {**ours, "recorded_pids": sorted(candidates)}
        yield compared("if we launched it", sorted(candidates), sorted(_family(table, recorded)))
        yield compared("if we did not", [], sorted(_family(table, ours) & (candidates | must_not)))


def _process(row: Mapping[str, Any]) -> Process:
    pgid = int(row.get("pgid", row["pid"]))
    return Process(
        pid=int(row["pid"]),
        start_time=float(row.get("start_time", 1.0)),
        parent_pid=int(row.get("ppid", 1)),
        pgid=pgid,
        session=int(row.get("sid", pgid)),
        name=str(row.get("name", ""))[:15],
        zombie=str(row.get("state", "")).startswith("Z"),
    )


def _family(table: Mapping[int, Process], ours: Mapping[str, Any]) -> set[int]:
    """Everything that belongs to the launches that are recorded as ours; their launchers may be long gone."""
    recorded = [table[pid].id for pid in ours.get("recorded_pids", []) if pid in table]
    launches = ours.get("launched_pgids", []) or [0]
    found: set[int] = set()
    for pgid in launches:
        root = ProcessId(int(pgid), 0.0)
        family = find_family(table, root, int(pgid) or -1, _TOKEN, recorded, read_token=lambda _: None)
        found |= {process.pid for process in family}
    return found
