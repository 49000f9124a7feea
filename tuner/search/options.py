"""What the search may be told beside the space: the user's present flags, the workload's shape, and its manners."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tuner.trial import Setting, TrialResult


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Everything has a default; a search without any of it starts at SGLang's own default and learns the rest."""

    current: Setting | None = None
    """The flags the user runs today: known to work, so the first point. None: SGLang's own default."""
    black_box: bool = False
    """Without the physics: raw knobs, a bare Gaussian process, feasibility from crashes alone."""
    probes: bool = True
    """Starts with --load-format dummy are allowed (the model and the build can do it)."""
    confirm: bool = True
    """Keep part of the budget to measure incumbent and runner-up again."""
    least_survival: float = 0.95
    """No start is proposed whose chance of surviving every stage is lower, while a better one exists."""
    bare_survival: float = 0.62
    """The same for a black box, which must go beyond what it has seen to find anything: 0.03 of a fraction at a time
    at first, and two fifths of the way to a death after one."""
    until_gain_below: float = 0.007
    """Stop exploring when the best expected improvement falls below this share of the incumbent."""
    most_levels: int = 4
    """Concurrency levels in one start, at most."""
    safety_gib: float = 0.2
    """Room that the exported fraction keeps above the worst transient that the evidence allows."""
    tokens_in_flight: float | None = None
    """Mean prompt + half the mean output of the workload; None: learned from the first level."""
    reused_prefix_share: float | None = None
    """Share of the prompt tokens that other requests share; None: judged by the cache hits seen."""
    expected_start_s: float | None = None
    """Of a start with real weights, before one was timed; None: from the size of the weights."""
    expected_level_s: float = 240.0
    """Of a level, before one was timed."""
    level_budget_s: float = math.inf
    """What the budget gives each level."""
    earlier: tuple[TrialResult, ...] = ()
    """Trials of an earlier study on the same model and GPUs. They teach, but cannot be the answer."""
