"""Processes: which of a table belong to a launch of ours, by `launcher.process.find_family`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.cases.case import Case, Check, compared
from launcher.process import Process, ProcessId, find_family

_TOKEN = "token-of-our-launch"


def judge(case: Case) -> Iterator[Check]:
    rows = {row["pid"]: row for row in case.json("procs.json")}
    table = {pid: _process(row) for pid, row in rows.items()}
    ours = case.json("ours.json") if "ours.json" in case.inputs else {}
    must_not = set(case.expect.get("must_not_kill", []))
    if "kill" in case.expect:
        found = _family(table, ours, rows)
        yield compared("kill", sorted(case.expect["kill"]), sorted(found))
        yield compared("must_not_kill", [], sorted(found & must_not))
    if "kill_candidates" in case.expect:
        candidates = set(case.expect["kill_candidates"])
        recorded = {**ours, "launched_pids": sorted(candidates)}
        yield compared("if we launched it", sorted(candidates), sorted(_family(table, recorded, rows)))
        yield compared("if we did not", [], sorted(_family(table, ours, rows) & (candidates | must_not)))


def _process(row: Mapping[str, Any]) -> Process:
    pgid = int(row.get("pgid", row["pid"]))
    return Process(
        pid=int(row["pid"]),
        start_time=float(row.get("start_time", row.get("create_time", 1.0))),
        parent_pid=int(row.get("ppid", 1)),
        pgid=pgid,
        session=int(row.get("sid", pgid)),
        name=str(row.get("name", ""))[:15],
        zombie=str(row.get("state", "")).startswith("Z"),
    )


def _family(table: Mapping[int, Process], ours: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]]) -> set[int]:
    """Everything that belongs to the launches that are recorded as ours; their launchers may be long gone.

    Our record names groups, and processes by pid and, where the case tells it, start time.
    """
    recorded = [
        found
        for name in ("launched_pids", "pids", "recorded")
        for one in ours.get(name, ())
        for found in _known(one, table)
    ]
    found: set[int] = set()
    for pgid in ours.get("launched_pgids", ()) or [-1]:
        root = ProcessId(int(pgid), float(ours.get("launched_at", 0.0)))
        family = find_family(table, root, int(pgid), _TOKEN, recorded, read_token=lambda pid: _token(rows[pid]))
        found |= {process.pid for process in family}
    return found


def _known(one: Any, table: Mapping[int, Process]) -> list[ProcessId]:
    """A recorded process: a pid alone, or a pid with the start time that it had then."""
    if isinstance(one, Mapping):
        return [ProcessId(int(one["pid"]), float(one.get("start_time", one.get("create_time", 1.0))))]
    return [table[one].id] if one in table else []


def _token(row: Mapping[str, Any]) -> str | None:
    """Our token in its environment, as the case shows it; None where it shows no environment."""
    environment = row.get("environ")
    if environment is None:
        return None
    return _TOKEN if environment.get("KVTUNE_TOKEN") else ""
