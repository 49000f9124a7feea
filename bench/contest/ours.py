"""kvtune's own search as a contestant: told what a daemon would tell it, and nothing of the preset's physics."""

from __future__ import annotations

from collections.abc import Sequence

from bench.contest.cases import Case
from launcher.simulated.presets import Preset
from launcher.timeline import Timeline
from tuner.memory import HostMemory, MemoryPrior, ModelGeometry
from tuner.search import Searcher, SearchOptions, shape_of
from tuner.trial import LevelResult, Proposal, Setting, TrialResult
from tuner.workload import load_workload


class Kvtune:
    """The searcher behind the contest's interface. `setting` of the final answer keeps the exported margin."""

    def __init__(
        self, case: Case, seed: int, *, black_box: bool = False, probes: bool = True, name: str = "kvtune"
    ) -> None:
        self.name = name
        shape = shape_of(load_workload(case.workload, seed=seed).sample(512))
        options = SearchOptions(
            black_box=black_box,
            probes=probes,
            tokens_in_flight=shape.tokens_in_flight,
            reused_prefix_share=shape.reused_prefix_share,
        )
        self._searcher = Searcher(case.space, prior=prior_of(case.preset), options=options, seed=seed)

    def propose(self, history: Sequence[TrialResult], remaining_s: float) -> Proposal | None:
        return self._searcher.propose(history, remaining_s)

    def next_concurrency(
        self,
        history: Sequence[TrialResult],
        proposal: Proposal,
        done: Sequence[LevelResult],
        remaining_s: float,
        timeline: Timeline | None,
    ) -> int | None:
        return self._searcher.next_concurrency(history, proposal, done, remaining_s, timeline)

    def answer(self, history: Sequence[TrialResult]) -> tuple[Setting, int] | None:
        """What would be exported now, margin and all."""
        incumbent = self._searcher.verdict(history).incumbent
        return None if incumbent is None else (self._searcher.export_setting(history), incumbent.concurrency)


def prior_of(preset: Preset) -> MemoryPrior:
    """What a model's config.json, its index and the driver would say. Hidden: B, W, overhead, transient, speed.

    The MLP's width is left out: a preset does not name it, and without it the transient starts as a guess.
    """
    model = preset.model
    geometry = ModelGeometry(
        model_type=model.model_type,
        layers=model.layers,
        hidden_size=0,
        intermediate_size=0,
        vocab_size=model.vocab_size,
        attention_heads=1,
        kv_heads=model.kv_heads or 1,
        head_dim=model.head_dim or 1,
        kv_lora_rank=model.kv_lora_rank,
        qk_rope_head_dim=model.qk_rope_head_dim or 0,
        experts=int(any(word in model.model_type for word in ("deepseek", "kimi", "moe"))),
        weights_bytes=model.weights_gib * model.tp_size * 2**30,
        weights_known=True,
    )
    host = HostMemory(int(preset.box.host_available_gb * 1e9), model.tp_size, preset.sglang_version)
    return MemoryPrior(geometry, preset.box.gpu_memory_gib, model.tp_size, host=host)
