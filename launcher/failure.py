"""Why a server did not start or did not live: a Failure has a kind, a stage, a direction and a culprit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What happened. The names are those of the field cases."""

    GPU_OOM_WEIGHTS = "gpu_oom_weights"
    GPU_OOM_STARTUP_KV = "gpu_oom_startup_kv"
    GPU_OOM_STARTUP = "gpu_oom_startup"
    GPU_OOM_GRAPH_CAPTURE = "gpu_oom_graph_capture"
    GPU_OOM_RUNTIME = "gpu_oom_runtime"
    GPU_OOM_NCCL = "gpu_oom_nccl"
    KV_POOL_EXHAUSTED = "kv_pool_exhausted"
    HOST_OOM_HICACHE = "host_oom_hicache"
    HOST_OOM_KILLED = "host_oom_killed"
    HOST_PIN_FAILED = "host_pin_failed"
    KERNEL_RESOURCE_LIMIT = "kernel_resource_limit"
    WORKSPACE_OVERFLOW = "workspace_overflow"
    GRAPH_CAPTURE_OTHER = "graph_capture_other"
    CUDA_CRASH = "cuda_crash"
    PEER_FAILURE = "peer_failure"
    HANG_WATCHDOG = "hang_watchdog"
    HANG_NCCL_TIMEOUT = "hang_nccl_timeout"
    HANG_RUNTIME = "hang_runtime"
    HANG_STARTUP = "hang_startup"
    WARMUP_FAILED = "warmup_failed"
    PORT_IN_USE = "port_in_use"
    GPU_BUSY_OTHER_PROCESS = "gpu_busy_other_process"
    CONFIG_ERROR = "config_error"
    MODEL_NOT_FOUND = "model_not_found"
    COMMAND_NOT_FOUND = "command_not_found"
    UNAUTHORIZED = "unauthorized"
    """It serves, but asks for an API key that it was not given."""
    KILLED = "killed"
    """Somebody sent SIGKILL or SIGTERM, and it was not us."""
    UNKNOWN = "unknown"


class Stage(StrEnum):
    """The last milestone's successor: where in its life the server was."""

    LAUNCH = "launch"
    WEIGHTS = "weights"
    KV_POOL = "kv_pool"
    GRAPH_CAPTURE = "graph_capture"
    HOST_POOL = "host_pool"
    WARM_UP = "warm_up"
    FIRST_PREFILL = "first_prefill"
    UNDER_LOAD = "under_load"
    SHUTDOWN = "shutdown"


class Direction(StrEnum):
    """Which way the knob must move to cure it."""

    UP = "up"
    DOWN = "down"
    NONE = "none"


class Culprit(StrEnum):
    """Only CONFIGURATION and HOST_MEMORY say something about the configuration; the rest must not teach a model."""

    CONFIGURATION = "configuration"
    HOST_MEMORY = "host_memory"
    INFRASTRUCTURE = "infrastructure"
    SERVER_BUG = "server_bug"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FailureNumbers:
    """The figures found in the evidence; None where it has none."""

    tried_gib: float | None = None
    gpu_free_gib: float | None = None
    gpu_total_gib: float | None = None
    minimum_mem_fraction: float | None = None
    mem_fraction_seen: float | None = None
    host_requested_gb: float | None = None
    host_available_gb: float | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """The verdict on one failed start or one dead server, with what proves it."""

    kind: Kind
    stage: Stage
    mem_fraction_direction: Direction
    culprit: Culprit
    retry: bool
    """The same configuration may work if it is tried again, after a clean-up."""
    sentence: str
    """One sentence for a person."""
    hicache_direction: Direction = Direction.NONE
    rank: str | None = None
    gpu_index: int | None = None
    exit_code: int | None = None
    numbers: FailureNumbers = FailureNumbers()
    evidence: tuple[str, ...] = ()
    """The lines that prove it, redacted, oldest first."""

    @property
    def is_gpu_oom(self) -> bool:
        return self.kind.value.startswith("gpu_oom")

    @property
    def teaches(self) -> bool:
        """Whether it says something about the configuration (and may train a feasibility model)."""
        return self.culprit in (Culprit.CONFIGURATION, Culprit.HOST_MEMORY)
