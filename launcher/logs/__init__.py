"""What SGLang's log says, in every version: batches, retractions, the start-up's milestones and its timeline."""

from launcher.logs.batch import BatchLine, Phase, RetractionLine, distinct_retractions
from launcher.logs.follow import LogEvent, LogFollower, read_event, read_timeline, stage_after
from launcher.logs.line import LogLine, Rank, read_line, split_lines
from launcher.logs.milestone import Milestone, Step

__all__ = [
    "BatchLine",
    "LogEvent",
    "LogFollower",
    "LogLine",
    "Milestone",
    "Phase",
    "Rank",
    "RetractionLine",
    "Step",
    "distinct_retractions",
    "read_event",
    "read_line",
    "read_timeline",
    "split_lines",
    "stage_after",
]
