"""The study that ran on one H200 (bench/h200): what was measured there decides, whatever the curve expects."""

from __future__ import annotations

import json
from pathlib import Path

from tuner.journal.codec import from_json_value
from tuner.search import Searcher, SearchOptions
from tuner.space import Space
from tuner.trial import TrialResult

STUDY = Path(__file__).parents[2] / "bench" / "h200" / "results" / "qwen32-study.json"


def test_measured_twice_and_better_with_more_headroom_wins() -> None:
    trials = from_json_value(tuple[TrialResult, ...], json.loads(STUDY.read_text())["trials"])
    searcher = Searcher(Space((0.80, 0.99), concurrency=(32, 224)), prior=None, options=SearchOptions(), seed=0)
    verdict = searcher.verdict(trials)
    best = verdict.incumbent
    assert best is not None
    # 0.903: 2,247, 2,306, 2,307 tokens/s with 12.2 GiB left; 0.97: 2,160 and 2,174 with 3.0 GiB.
    assert best.setting.mem_fraction_static == 0.903
    assert not verdict.clear
    assert "0.97 bfloat16 at concurrency 224 measured 2,169 tokens/s" in verdict.explanation
    assert "(-5." in verdict.explanation
    assert "the higher rate stands first" in verdict.explanation
