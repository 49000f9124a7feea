"""The memory model: what a setting will hold, leave free and survive. Pure; learned anew from all trials.

    slack(f)    = B - W - pool,  pool = f * B - W unless --max-total-tokens caps it
    headroom(f) = slack(f) - request table - overhead(dtype, HiCache on or off)
    table       = (max running requests + 1) * (context + 4) * 4 bytes   (SGLang's ReqToTokenPool, int32)
    feasible    <=> headroom(f) > transient, the pool serves the longest request, and the host pool fits
B, W, b and the overhead are read off the first start that reaches its memory lines; the transient is bounded from
below by what NVML saw under load and by crashes, from above by the room that whole levels survived with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from scipy.special import ndtr

from launcher.failure import Stage
from tuner.memory.belief import Belief, GridBelief
from tuner.memory.geometry import GIB
from tuner.memory.host import GB, HostEvidence, host_survival
from tuner.memory.prior import MemoryPrior
from tuner.space import ELEMENT_BYTES
from tuner.trial import Setting

FIRST_CHUNK_SHARE = 0.85
"""The first full prefill chunk asks for most of the transient; a full house of decodes asks for the rest."""
CHUNK_SHARE = 0.8
"""How much of the transient grows with --chunked-prefill-size; the rest are workspaces."""
OTHER_GROUP_SD_GIB = 0.25
"""How far the overhead of another dtype, or with HiCache, may lie from the ones seen (0.2 GiB on an H200)."""
UNSEEN_TOKENS_SHARE_SD = 0.03
START_TRANSIENT_SHARE_SD = 0.05
"""How much the worst step of one start may differ from another's: fragmentation, the order of the prompts."""
LEAST_RUNNING, MOST_RUNNING, RUNNING_PER_CONTEXT = 2048, 4096, 512
"""SGLang's default --max-running-requests: min(max(tokens / context * 512, 2048), 4096) [0.5.6-0.5.23]."""

OverheadGroup = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class MemoryPrediction:
    """What one setting should hold and survive. `survival` is conditional: each stage given the stages before it."""

    tokens: float
    tokens_sd: float
    headroom_gib: float
    headroom_sd_gib: float
    survival: Mapping[Stage, float]

    @property
    def survival_probability(self) -> float:
        product = 1.0
        for chance in self.survival.values():
            product *= chance
        return product


@dataclass(frozen=True, slots=True)
class MemoryModel:
    """The learned state. `known` is False until a start showed B, W, b and the overhead."""

    prior: MemoryPrior
    before_gib: Belief
    weights_gib: Belief
    overhead_gib: Belief
    overhead_by_group: Mapping[OverheadGroup, Belief]
    bytes_by_dtype: Mapping[str, float]
    """b as seen, per dtype and rank."""
    transient_gib: GridBelief
    host_seen: HostEvidence
    context_len: int | None = None
    """As the start-up line told it; None: the request table is part of the overhead."""
    most_running: int | None = None
    """A pinned --max-running-requests; None: SGLang's default, which follows the tokens."""
    graph_batch: int | None = None
    """The largest decode batch with a captured graph, as a start listed it."""
    before_is_read: bool = False
    """B and W were printed by a start."""
    known: bool = False

    def bytes_per_token(self, kv_cache_dtype: str) -> tuple[float, bool]:
        """b and whether that dtype was seen; another dtype follows from the ratio of element sizes."""
        if kv_cache_dtype in self.bytes_by_dtype:
            return self.bytes_by_dtype[kv_cache_dtype], True
        for seen, seen_bytes in self.bytes_by_dtype.items():
            return seen_bytes * ELEMENT_BYTES[kv_cache_dtype] / ELEMENT_BYTES[seen], False
        computed = self.prior.bytes_per_token(kv_cache_dtype)
        return (computed or 100_000 * ELEMENT_BYTES[kv_cache_dtype]), False

    def overhead(self, setting: Setting) -> Belief:
        """Graphs and workspaces of this setting."""
        group = (setting.kv_cache_dtype, setting.hicache_size_gb > 0)
        return self.overhead_by_group.get(group, self.overhead_gib)

    def fraction(self, setting: Setting) -> float:
        given = setting.mem_fraction_static
        return self.prior.default_fraction() if given is None else given

    def pool_gib(self, setting: Setting) -> float:
        """The KV pool per rank: f * B - W, or what --max-total-tokens allows."""
        return min(self.room(setting).mean, self.cap_gib(setting))

    def room(self, setting: Setting) -> Belief:
        """f * B - W: what the fraction leaves for the pool, whatever caps it, in GiB."""
        fraction = self.fraction(setting)
        mean = fraction * self.before_gib.mean - self.weights_gib.mean
        return Belief(mean, math.hypot(fraction * self.before_gib.sd, self.weights_gib.sd))

    def cap_gib(self, setting: Setting) -> float:
        """What --max-total-tokens allows the pool to be; infinite without one."""
        cap = setting.flags.get("max-total-tokens", self.prior.max_total_tokens)
        if not isinstance(cap, int):
            return math.inf
        return cap * self.bytes_per_token(setting.kv_cache_dtype)[0] / GIB

    @property
    def largest_graph_batch(self) -> int:
        """Running requests above this decode without a graph: as seen, else SGLang's default."""
        return self.graph_batch or self.prior.largest_graph_batch

    def slack_gib(self, kv_cache_dtype: str, tokens: float, pool_gib: float) -> float:
        """What weights, pool and request table leave of B."""
        geometry = self.prior.geometry
        taken = pool_gib
        if geometry is not None and tokens > 0:
            taken = max(taken, geometry.pool_gib(tokens, kv_cache_dtype, self.prior.attention_tp_size))
        return self.before_gib.mean - self.weights_gib.mean - taken - self.request_table_gib(tokens)

    def request_table_gib(self, tokens: float) -> float:
        """The table of running requests by context positions."""
        if self.context_len is None:
            return 0.0
        running = self.most_running or default_running(tokens, self.context_len)
        return (running + 1) * (self.context_len + 4) * 4 / GIB

    def transient_scale(self, setting: Setting) -> float:
        """How this setting's transient compares with that of the pinned chunk."""
        chunk = setting.flags.get("chunked-prefill-size")
        if not isinstance(chunk, int) or chunk <= 0:
            return 1.0
        return 1 - CHUNK_SHARE + CHUNK_SHARE * chunk / self.prior.chunk

    def predict(self, setting: Setting) -> MemoryPrediction:
        """Tokens (of one DP rank), headroom in GiB of the poorest rank, and the chance of surviving each stage."""
        token_bytes, seen = self.bytes_per_token(setting.kv_cache_dtype)
        pool = self.pool_gib(setting)
        tokens = max(0.0, pool) * GIB / token_bytes
        overhead = self.overhead(setting)
        headroom = self.slack_gib(setting.kv_cache_dtype, tokens, pool) - overhead.mean
        fraction = self.fraction(setting)
        slack_sd = (1 - fraction) * self.before_gib.sd
        headroom_sd = float((slack_sd**2 + overhead.sd**2) ** 0.5)
        room, cap = self.room(setting), self.cap_gib(setting)
        # A cap that the room surely holds is exact: nothing that is unknown of B or W moves it.
        pool_sd = room.sd * (1 - _chance_above(room.mean, room.sd, cap)) if cap < math.inf else room.sd
        share_sd = 0.002 if seen else UNSEEN_TOKENS_SHARE_SD
        return MemoryPrediction(
            tokens=tokens,
            tokens_sd=pool_sd * GIB / token_bytes + share_sd * tokens,
            headroom_gib=headroom,
            headroom_sd_gib=headroom_sd,
            survival=self._survival(setting, pool, headroom, headroom_sd, token_bytes),
        )

    def _survival(
        self,
        setting: Setting,
        pool_gib: float,
        headroom_gib: float,
        headroom_sd_gib: float,
        token_bytes: float,
    ) -> dict[Stage, float]:
        scale = self.transient_scale(setting)
        captured = _chance_above(headroom_gib, headroom_sd_gib, 0.05)
        step_sd_gib = math.hypot(headroom_sd_gib, START_TRANSIENT_SHARE_SD * scale * self.transient_gib.mean)
        first = self.transient_gib.chance_below(headroom_gib, step_sd_gib, scale * FIRST_CHUNK_SHARE)
        loaded = self.transient_gib.chance_below(headroom_gib, step_sd_gib, scale)
        shortest_gib = self.prior.shortest_pool_tokens * token_bytes / GIB
        room, holds_longest = self.room(setting), self.cap_gib(setting) >= shortest_gib
        room_gib = self.before_gib.mean - self.weights_gib.mean
        room_sd_gib = float((self.before_gib.sd**2 + self.weights_gib.sd**2) ** 0.5)
        device_pool_gb = pool_gib * GIB / GB
        return {
            Stage.WEIGHTS: _chance_above(room_gib, room_sd_gib, 0.0),
            Stage.KV_POOL: _chance_above(room.mean, room.sd, shortest_gib) if holds_longest else 0.0,
            Stage.GRAPH_CAPTURE: captured,
            Stage.HOST_POOL: host_survival(
                setting.hicache_size_gb, self.prior.host, self.host_seen, device_pool_gb=device_pool_gb
            ),
            Stage.FIRST_PREFILL: _ratio(first, captured),
            Stage.UNDER_LOAD: _ratio(loaded, first),
        }


def default_running(tokens: float, context_len: int) -> int:
    """SGLang's default for --max-running-requests at that capacity."""
    return min(max(int(tokens / context_len * RUNNING_PER_CONTEXT), LEAST_RUNNING), MOST_RUNNING)


def prior_model(prior: MemoryPrior) -> MemoryModel:
    """The model before any start."""
    return MemoryModel(
        prior=prior,
        before_gib=prior.before_gib(),
        weights_gib=prior.weights_gib(),
        overhead_gib=prior.overhead_gib(),
        overhead_by_group={},
        bytes_by_dtype={},
        transient_gib=prior.transient_gib(),
        host_seen=HostEvidence(),
    )


def _chance_above(mean: float, sd: float, floor: float) -> float:
    return float(ndtr((mean - floor) / max(sd, 1e-3)))


def _ratio(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 1e-12 else 0.0
