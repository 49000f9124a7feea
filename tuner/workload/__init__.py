"""Workloads: what the user wants served, as requests of known or expected lengths."""

from tuner.workload.lengths import LengthBook
from tuner.workload.request import Chat, Prompt, Request, Segment, Session, Synthetic, Text, TokenIds
from tuner.workload.workload import SAMPLE_SESSIONS, Group, Lane, Workload, load_workload

__all__ = [
    "SAMPLE_SESSIONS",
    "Chat",
    "Group",
    "Lane",
    "LengthBook",
    "Prompt",
    "Request",
    "Segment",
    "Session",
    "Synthetic",
    "Text",
    "TokenIds",
    "Workload",
    "load_workload",
]
