"""In which stage it happened, and what that makes of an out-of-memory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from launcher.failure import Direction, Kind, Stage
from launcher.failures.rule import Rule
from launcher.failures.story import Message
from launcher.logs import Milestone, Step

_SERVING = re.compile(
    r"event_loop_\w+|run_batch|process_batch_result|forward_thread_func|exposed_step|forward_step|forward_decode_batch"
    r"|forward_batch_generation|handle_generate_request"
)
_BY_FRAMES = (
    (re.compile(r"graph_runner|init_\w*(?:cuda|device)_graphs|graph_setup|capture_one_batch|Capture[^\n]*graph failed"),
     Stage.GRAPH_CAPTURE),
    (re.compile(r"memory_pool_host|pool_host/|hiradix_cache"), Stage.HOST_POOL),
    (re.compile(r"init_memory_pool|memory_pool\.py|alloc_memory_pool|_create_buffers|pool_configurator|cache_configurator"),
     Stage.KV_POOL),
    (re.compile(r"load_model\b|model_loader|load_weights|weight_utils|process_weights_after_loading|create_weights"),
     Stage.WEIGHTS),
    (re.compile(r"init_torch_distributed|init_distributed_environment|initialize_model_parallel|pynccl"), Stage.LAUNCH),
)  # fmt: skip
_BEFORE_POOL = (None, Stage.LAUNCH, Stage.WEIGHTS)


@dataclass(frozen=True, slots=True)
class Placed:
    """A GPU out-of-memory with its stage: its kind, and which way mem-fraction-static cures it."""

    kind: Kind
    mem_fraction: Direction


def stage_of(message: Message, hint: Stage | None = None) -> Stage | None:
    """Where a message's failure happened: the traceback's frames know best, then the log's milestones, then a hint.

    None when nothing tells.
    """
    if message.stage in (Stage.FIRST_PREFILL, Stage.UNDER_LOAD, Stage.SHUTDOWN):
        return message.stage
    text = message.text
    if _SERVING.search(text):
        return Stage.WARM_UP if message.stage is Stage.WARM_UP else hint or Stage.UNDER_LOAD
    framed = next((stage for pattern, stage in _BY_FRAMES if pattern.search(text)), None)
    if framed is Stage.WEIGHTS and message.stage not in _BEFORE_POOL:
        # A draft model's weights, loaded beside the pools of the target.
        framed = None
    return framed or message.stage or hint


def is_capturing(message: Message, before: Sequence[Milestone]) -> bool:
    """Whether a graph capture was under way or done: by the milestones before the message, or by its own words."""
    begun = any(milestone.step in (Step.GRAPHS_BEGIN, Step.GRAPHS_END) for milestone in before)
    return begun or _BY_FRAMES[0][0].search(message.text) is not None


def place(rule: Rule, stage: Stage | None, *, capturing: bool) -> Placed:
    """What a GPU out-of-memory is in this stage. Weights that do not fit are helped by no mem-fraction; a pool, graphs
    or a step that do not fit are helped by a smaller one, because it leaves them more.

    `capturing`: a capture had begun, so that it was not the libraries' start-up between the pool and the first graph.
    """
    if rule.kind is not Kind.GPU_OOM_RUNTIME:
        return Placed(rule.kind, rule.mem_fraction)
    if stage is Stage.WEIGHTS:
        return Placed(Kind.GPU_OOM_WEIGHTS, Direction.NONE)
    if stage is Stage.LAUNCH:
        return Placed(Kind.GPU_OOM_STARTUP, Direction.NONE)
    if stage is Stage.GRAPH_CAPTURE and capturing:
        return Placed(Kind.GPU_OOM_GRAPH_CAPTURE, Direction.DOWN)
    if stage in (Stage.KV_POOL, Stage.GRAPH_CAPTURE, Stage.HOST_POOL):
        return Placed(Kind.GPU_OOM_STARTUP, Direction.DOWN)
    return Placed(Kind.GPU_OOM_RUNTIME, Direction.DOWN)
