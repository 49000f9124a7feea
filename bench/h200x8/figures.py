"""What the rows of one run come to."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.figures import figure

GIB = 2**30


def print_figures(rows: Path) -> None:
    """A figure for each thing that this run showed; one that it did not show is left out."""
    told = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()] if rows.exists() else []
    for name, (value, unit) in {**_predictions(told), **_kvtop(told), **_ends(told), **_host(told)}.items():
        figure(name, value, unit)


Figures = Mapping[str, tuple[float, str]]


def _predictions(rows: list[dict[str, Any]]) -> Figures:
    """How far tokens and headroom lay from what the start after the study showed."""
    found = next((row for row in rows if "after_the_study" in row.get("predicted", ())), None)
    if found is None:
        return {}
    predicted, seen = found["predicted"]["after_the_study"], found["memory"]
    return {
        "tokens_error_share": (abs(predicted["tokens"] / seen["capacity_tokens"] - 1), "share"),
        "headroom_error_gib": (abs(predicted["headroom_gib"] - seen["headroom_gib"]), "GiB"),
    }


def _kvtop(rows: list[dict[str, Any]]) -> Figures:
    """GPUs that kvtop gives to the server, and how much of what NVML shows there no part explains, at worst."""
    shown = next((row for row in rows if isinstance(row.get("kvtop"), dict)), None)
    if shown is None:
        return {}
    unnamed = list(_unnamed_shares(shown["kvtop"]["gpus"]))
    counted: Figures = {"gpus_shown": (len(unnamed), "GPUs")}
    return {**counted, "unnamed_memory_max_share": (max(unnamed), "share")} if unnamed else counted


def _unnamed_shares(gpus: list[dict[str, Any]]) -> Iterator[float]:
    """Weights, KV and graphs are the server's own figures; what is left of NVML's is `other` or without an owner."""
    for gpu in gpus:
        if gpu["server_url"] is not None:
            parts = gpu["memory_parts"]
            yield (parts["other_bytes"] + parts["unattributed_bytes"]) / gpu["memory_used_bytes"]


def _ends(rows: list[dict[str, Any]]) -> Figures:
    """Clean slates, at worst; how soon a rank's death was seen."""
    slates = [row["slate"] for row in rows if "slate" in row]
    deaths = [row["death_seen_s"] for row in rows if "death_seen_s" in row]
    if not slates:
        return {}
    ends = {
        "memory_back_max_s": (max(slate["back_s"] for slate in slates), "s"),
        "left_behind_max_gib": (max(max(slate["left_bytes"]) for slate in slates) / GIB, "GiB"),
    }
    return {**ends, **({"death_seen_s": (deaths[0], "s")} if deaths else {})}


def _host(rows: list[dict[str, Any]]) -> Figures:
    """What HiCache took of the host, to what all ranks together were to take."""
    told = next((row for row in rows if row.get("host_available_before_gb") is not None), None)
    after = next((row for row in rows if row.get("host_available_gb") is not None), None)
    if told is None or after is None:
        return {}
    taken_gb = told["host_available_before_gb"] - after["host_available_gb"]
    return {"host_taken_to_asked_share": (taken_gb / (told["ranks"] * told["hicache_size_gb"]), "share")}
