"""Failures in other words than the field cases': each kind has many."""

from __future__ import annotations

import pytest

from launcher.failure import Culprit, Direction, Kind, Stage
from launcher.failures import Evidence, classify


def start(upto: str = "ready", rank: str = "TP0") -> str:
    """A start-up (0.5.12 wording) as far as the step of this name."""
    steps = {
        "launch": "[2026-05-04 10:00:00] server_args=ServerArgs(model_path='/m/x', mem_fraction_static=0.91)",
        "distributed": f"[2026-05-04 10:00:20 {rank}] Init torch distributed begin.",
        "weights": f"[2026-05-04 10:00:30 {rank}] Load weight begin. avail mem=78.10 GB",
        "pool": f"[2026-05-04 10:02:10 {rank}] Load weight end. type=X, avail mem=60.00 GB, mem usage=18.10 GB.",
        "pool_end": f"[2026-05-04 10:02:11 {rank}] Memory pool end. avail mem=6.95 GB",
        "capture": f"[2026-05-04 10:02:12 {rank}] Capture cuda graph begin. This can take up to several minutes. "
        "avail mem=6.90 GB",
        "captured": f"[2026-05-04 10:02:40 {rank}] Capture cuda graph end. Time elapsed: 28.00 s. mem usage=1.20 GB. "
        "avail mem=5.70 GB.",
        "summary": f"[2026-05-04 10:02:41 {rank}] max_total_num_tokens=400000, chunked_prefill_size=8192, "
        "max_prefill_tokens=16384, max_running_requests=2048, context_len=32768, available_gpu_mem=5.70 GB",
        "http": "[2026-05-04 10:02:45] INFO:     Application startup complete.",
        "ready": "[2026-05-04 10:02:50] The server is fired up and ready to roll!",
    }
    lines = []
    for name, line in steps.items():
        lines.append(line)
        if name == upto:
            break
    return "\n".join(lines) + "\n"


def decode(second: int = 10, rank: str = "TP0", running: int = 64) -> str:
    return (
        f"[2026-05-04 10:03:{second:02d} {rank}] Decode batch, #running-req: {running}, #token: 90000, "
        "token usage: 0.22, cuda graph: True, gen throughput (token/s): 2100.00, #queue-req: 0\n"
    )


def crash(error: str, *frames: str, rank: str = "TP0") -> str:
    """A scheduler's death as it logs it: the traceback, then the launcher's word."""
    middle = "".join(f'  File "/opt/sglang/{frame}", line 7, in somewhere\n    call()\n' for frame in frames)
    return (
        f"[2026-05-04 10:04:00 {rank}] Scheduler hit an exception: Traceback (most recent call last):\n"
        f"{middle}{error}\n\n"
        "[2026-05-04 10:04:05] SIGQUIT received. signum=None, frame=None. It usually means one child failed.\n"
    )


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB "
    "of which 1.25 GiB is free. Process 9 has 77.86 GiB memory in use. Of the allocated memory 70.00 GiB is allocated "
    "by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
)

GPU_OOM = [
    ("weights", OOM, ("model_loader/loader.py",), Kind.GPU_OOM_WEIGHTS, Direction.NONE, Stage.WEIGHTS),
    ("weights", OOM, (), Kind.GPU_OOM_WEIGHTS, Direction.NONE, Stage.WEIGHTS),
    ("pool", OOM, ("mem_cache/memory_pool.py",), Kind.GPU_OOM_STARTUP, Direction.DOWN, Stage.KV_POOL),
    ("capture", f"Exception: Capture cuda graph failed: {OOM}", (), Kind.GPU_OOM_GRAPH_CAPTURE, Direction.DOWN,
     Stage.GRAPH_CAPTURE),
    ("capture", "RuntimeError: Capture prefill CUDA graph failed: CUDA error: out of memory", (),
     Kind.GPU_OOM_GRAPH_CAPTURE, Direction.DOWN, Stage.GRAPH_CAPTURE),
    ("capture", "RuntimeError: Triton Error [CUDA]: out of memory", (), Kind.GPU_OOM_GRAPH_CAPTURE, Direction.DOWN,
     Stage.GRAPH_CAPTURE),
    ("pool_end", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", (),
     Kind.GPU_OOM_STARTUP, Direction.DOWN, Stage.GRAPH_CAPTURE),
    ("http", OOM, ("managers/scheduler.py:run_batch",), Kind.GPU_OOM_RUNTIME, Direction.DOWN, Stage.WARM_UP),
    ("ready", OOM, ("managers/scheduler.py",), Kind.GPU_OOM_RUNTIME, Direction.DOWN, Stage.FIRST_PREFILL),
    ("ready", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 1; 79.15 GiB total "
     "capacity; 77.90 GiB already allocated; 12.50 MiB free; 78.10 GiB reserved in total by PyTorch)", (),
     Kind.GPU_OOM_RUNTIME, Direction.DOWN, Stage.FIRST_PREFILL),
    ("ready", "RuntimeError: HIP error: out of memory", (), Kind.GPU_OOM_RUNTIME, Direction.DOWN, Stage.FIRST_PREFILL),
    ("ready", "RuntimeError: NPU out of memory. Tried to allocate 1.00 GiB (NPU 0; 61.0 GiB total capacity)", (),
     Kind.GPU_OOM_RUNTIME, Direction.DOWN, Stage.FIRST_PREFILL),
    ("ready", "RuntimeError: cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY", (), Kind.GPU_OOM_RUNTIME, Direction.DOWN,
     Stage.FIRST_PREFILL),
    ("ready", "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", (), Kind.GPU_OOM_RUNTIME, Direction.DOWN,
     Stage.FIRST_PREFILL),
    ("pool", "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static. Current value: "
     "mem_fraction_static=0.55", (), Kind.GPU_OOM_STARTUP_KV, Direction.UP, Stage.KV_POOL),
    ("pool", "ValueError: SWA pool (512 tokens) cannot hold even one request of 4096 tokens", (),
     Kind.GPU_OOM_STARTUP_KV, Direction.UP, Stage.KV_POOL),
]  # fmt: skip


@pytest.mark.parametrize(("upto", "error", "frames", "kind", "direction", "stage"), GPU_OOM)
def test_gpu_memory_by_stage(
    upto: str, error: str, frames: tuple[str, ...], kind: Kind, direction: Direction, stage: Stage
) -> None:
    failure = classify(Evidence(log=start(upto) + crash(error, *frames), exit_code=-9))
    assert failure is not None
    assert (failure.kind, failure.mem_fraction_direction, failure.stage) == (kind, direction, stage)
    assert failure.is_gpu_oom
    assert failure.teaches
    assert failure.rank == "TP0"


OTHERS = [
    ("ready", "RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate 33 tokens.\n"
     "Available tokens: 12", Kind.KV_POOL_EXHAUSTED),
    ("ready", "ValueError: No space left for only one request", Kind.KV_POOL_EXHAUSTED),
    ("ready", "RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for "
     "`--max-running-requests`. req_to_token_pool.available_size()=0, num_reqs=3", Kind.KV_POOL_EXHAUSTED),
    ("ready", "ValueError: token_to_kv_pool_allocator memory leak detected! available_size=10, protected_size=0",
     Kind.UNKNOWN),
    ("summary", "ValueError: Not enough host memory for DSA indexer hierarchical cache. Requesting 12.00 GB but only "
     "have 3.00 GB free.", Kind.HOST_OOM_HICACHE),
    ("summary", "RuntimeError: cudaHostRegister failed (rc=2, out of memory) for ptr=0x7f size=1000000",
     Kind.HOST_PIN_FAILED),
    ("summary", "RuntimeError: cudaHostAlloc failed: out of memory", Kind.HOST_PIN_FAILED),
    ("ready", "RuntimeError: out of resource: registers, Required: 300, Hardware limit: 255.",
     Kind.KERNEL_RESOURCE_LIMIT),
    ("capture", "Exception: Capture cuda graph failed: out of resource: shared memory, Required: 147456, Hardware "
     "limit: 101376.", Kind.KERNEL_RESOURCE_LIMIT),
    ("ready", "RuntimeError: CUDA error: too many resources requested for launch", Kind.KERNEL_RESOURCE_LIMIT),
    ("ready", "RuntimeError: Failed to allocate memory for batch_prefill_tmp_v with size 300000000 and alignment 16 in "
     "AlignedAllocator", Kind.WORKSPACE_OVERFLOW),
    ("capture", "Exception: Capture cuda graph failed: Error in function 'aligned_alloc' at allocator.h:49: Buffer "
     "overflow when allocating memory for batch_decode_tmp_v with size 9 and alignment 16, but only 4 bytes available "
     "in AlignedAllocator. Increase the workspace buffer size.", Kind.WORKSPACE_OVERFLOW),
    ("ready", "RuntimeError: Out of workspace memory in AlignedAlloactor", Kind.WORKSPACE_OVERFLOW),
    ("capture", "RuntimeError: CUDA error: operation not permitted when stream is capturing", Kind.GRAPH_CAPTURE_OTHER),
    ("capture", "Exception: Capture cuda graph failed: 'NoneType' object has no attribute 'shape'",
     Kind.GRAPH_CAPTURE_OTHER),
    ("ready", "RuntimeError: CUDA error: device-side assert triggered", Kind.CUDA_CRASH),
    ("ready", "RuntimeError: CUDA error: misaligned address", Kind.CUDA_CRASH),
    ("ready", "RuntimeError: CUDA error: uncorrectable ECC error encountered", Kind.CUDA_CRASH),
    ("ready", "torch.AcceleratorError: CUDA error: unspecified launch failure", Kind.CUDA_CRASH),
    ("capture", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection reset by peer "
     "[10.1.1.2]:4000", Kind.PEER_FAILURE),
    ("ready", "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2027, remote process exited or "
     "there was a network error, NCCL version 2.21.5\nncclRemoteError: a remote process exited", Kind.PEER_FAILURE),
    ("distributed", "RuntimeError: [../gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv "
     "operation to complete", Kind.HANG_NCCL_TIMEOUT),
    ("distributed", "RuntimeError: The memory capacity is unbalanced. Some GPUs may be occupied by other processes. "
     "pre_model_load_memory=20.1, local_gpu_memory=78.0", Kind.GPU_BUSY_OTHER_PROCESS),
    ("distributed", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
     Kind.GPU_BUSY_OTHER_PROCESS),
    ("distributed", "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:30011')", Kind.PORT_IN_USE),
    ("distributed", "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network "
     "address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
     Kind.PORT_IN_USE),
    ("distributed", "RuntimeError: CUDA error: invalid device ordinal", Kind.CONFIG_ERROR),
    ("distributed", "AssertionError: Total number of attention heads (40) must be divisible by tensor parallel size 16",
     Kind.CONFIG_ERROR),
    ("launch", "ValueError: User-specified context_length (65536) is greater than the derived context_length (32768).",
     Kind.CONFIG_ERROR),
    ("weights", "RuntimeError: Cannot find any model weights with `/m/x`", Kind.MODEL_NOT_FOUND),
    ("weights", "OSError: /m/x does not appear to have a file named config.json", Kind.MODEL_NOT_FOUND),
    ("ready", "ZeroDivisionError: division by zero", Kind.UNKNOWN),
]  # fmt: skip


@pytest.mark.parametrize(("upto", "error", "kind"), OTHERS)
def test_other_kinds(upto: str, error: str, kind: Kind) -> None:
    failure = classify(Evidence(log=start(upto) + crash(error), exit_code=-9))
    assert failure is not None
    assert failure.kind is kind
    assert not failure.is_gpu_oom
    assert failure.evidence


LINES = [
    ("usage: x\nlaunch_server.py: error: unrecognized arguments: --cuda-graph-max-bs 8\n", 2, Kind.CONFIG_ERROR),
    ("launch_server.py: error: ambiguous option: --cuda-graph-max-bs could match --cuda-graph-max-bs-decode\n", 2,
     Kind.CONFIG_ERROR),
    ("ValueError: Config file must be YAML format, got: best.conf\n", 1, Kind.CONFIG_ERROR),
    ("/opt/venv/bin/python: No module named sglang\n", 1, Kind.COMMAND_NOT_FOUND),
    ("sh: 1: sglang: not found\n", 127, Kind.COMMAND_NOT_FOUND),
    ("", 127, Kind.COMMAND_NOT_FOUND),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n", 137,
     Kind.HOST_OOM_KILLED),
    ("[1234.5] Memory cgroup out of memory: Killed process 77 (python) total-vm:1kB, anon-rss:2kB\n", None,
     Kind.HOST_OOM_KILLED),
    ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n", 1,
     Kind.HOST_OOM_KILLED),
    ("[rank3]:[E0102 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
     "WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.\n", -6,
     Kind.HANG_NCCL_TIMEOUT),
    ("[2026-05-04 10:09:00 DP1 TP3] Scheduler watchdog timeout (self.watchdog_timeout=900, self.soft=False)\n", None,
     Kind.HANG_WATCHDOG),
    ("[2026-05-04 10:09:00] Initialization failed. warmup error: Traceback (most recent call last):\n"
     "AssertionError: res=<Response [502]>, res.text='Bad Gateway'\n\nKilled\n", -9, Kind.WARMUP_FAILED),
    ("[2026-05-04 10:09:00] Health check failed. Server couldn't get a response from detokenizer for last 20 "
     "seconds.\n", None, Kind.HANG_RUNTIME),
    ("terminate called after throwing an instance of 'c10::Error'\n  what():  CUDA error: an illegal memory access was "
     "encountered\n", -6, Kind.CUDA_CRASH),
    ("[2026-05-04 10:01:00] Rank 0 scheduler is dead. Please check if there are relevant logs.\n"
     "[2026-05-04 10:01:01] Exit code: -9\nTraceback (most recent call last):\n  File \"x.py\"\nEOFError\n",
     -9, Kind.KILLED),
    ("Traceback (most recent call last):\n  File \"engine.py\"\nRuntimeError: Rank 3 scheduler died during "
     "initialization (exit code: -9). If exit code is -9 (SIGKILL), a common cause is the OS OOM killer.\n", 1,
     Kind.HOST_OOM_KILLED),
    ("ValueError: TP rank 1 could finish the model loading, but there are other ranks that didn't finish loading.\n", 1,
     Kind.PEER_FAILURE),
    ("[2026-05-04 10:00:09] Subprocess detokenizer_0 (pid=9) crashed with exit code -15. Triggering SIGQUIT\n", -9,
     Kind.KILLED),
    ("", -11, Kind.UNKNOWN),
    ("", 1, Kind.UNKNOWN),
    ("", -9, Kind.KILLED),
    ("", 143, Kind.KILLED),
]  # fmt: skip


@pytest.mark.parametrize(("log", "exit_code", "kind"), LINES)
def test_lines_without_a_traceback(log: str, exit_code: int | None, kind: Kind) -> None:
    failure = classify(Evidence(log=log, exit_code=exit_code))
    assert failure is not None
    assert failure.kind is kind


HARMLESS = [
    decode() + "[2026-05-04 10:03:20 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, "
    "#new_tokens_gained: 90, #new_token_ratio: 0.2 -> 0.4\n",
    "[2026-05-04 10:03:20 TP0] Out of memory even after retracting all other requests in the decode batch. Aborting "
    "the last request.\n" + decode(30),
    "[2026-05-04 10:03:20 TP0] Not enough host memory for request 7\n",
    "[W socket.cpp:436] [c10d] The server socket has failed to bind to [::]:9 (errno: 98 - Address already in use).\n"
    + start("ready"),
    "[2026-05-04 10:03:20] port 30010 is in use. Waiting for 15 seconds for nccl_port to be available.\n",
    "[2026-05-04 10:03:20] Exception in ASGI application\nTraceback (most recent call last):\nValueError: Input length "
    "(70000 tokens) exceeds the maximum allowed length (65530 tokens).\n",
    "[2026-05-04 10:03:20] DetokenizerManager watchdog timeout (self.watchdog_timeout=300, self.soft=True)\n",
    "[2026-05-04 10:03:20 TP0] The memory capacity is unbalanced. Some GPUs may be occupied by other processes.\n"
    + start("ready"),
    "[2026-05-04 10:00:50 TP0] [Autotuner]: Skipping tactic 5: Traceback (most recent call last):\n"
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.\n" + start("ready"),
    "[2026-05-04 10:03:20] SIGTERM received. signum=None frame=None. Draining requests and shutting down...\n"
    "[2026-05-04 10:03:21] kill_process_tree called: parent_pid=1, include_parent=True, pid=1\n",
    "[2026-05-04 10:03:20] Health check failed. Server couldn't get a response from detokenizer for last 20 seconds.\n"
    + decode(30),
    "",
]


@pytest.mark.parametrize("log", HARMLESS)
def test_what_only_looks_like_a_failure(log: str) -> None:
    assert classify(Evidence(log=start("ready") + log)) is None
    assert classify(Evidence(log=start("ready") + log, exit_code=0)) is None


def test_the_cause_before_its_consequences() -> None:
    log = (
        start("ready")
        + crash("RuntimeError: gloo Connection closed by peer [10.0.0.1]:1", rank="TP1")
        + crash(OOM, "managers/scheduler.py", rank="TP3")
        + "[2026-05-04 10:09:00 TP0] Watchdog timeout (self.watchdog_timeout=300)\n"
    )
    failure = classify(Evidence(log=log, exit_code=-9))
    assert failure is not None
    assert (failure.kind, failure.rank, failure.gpu_index) == (Kind.GPU_OOM_RUNTIME, "TP3", 3)
    assert failure.numbers.tried_gib == pytest.approx(2.5)
    assert failure.numbers.gpu_total_gib == pytest.approx(79.11)
    assert failure.numbers.mem_fraction_seen == pytest.approx(0.91)
    assert "2.50 GiB" in failure.sentence


def test_another_rank_that_decodes_on_is_no_survival() -> None:
    log = start("ready") + crash(OOM, rank="DP0 TP0").split("\n\n")[0] + "\n" + decode(30, "DP1 TP1")
    failure = classify(Evidence(log=log))
    assert failure is not None
    assert failure.kind is Kind.GPU_OOM_RUNTIME


def test_what_was_survived_is_not_blamed_for_a_later_death() -> None:
    skipped = (
        "[2026-05-04 10:00:50 TP0] [Autotuner]: Skipping tactic 5: Traceback (most recent call last):\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9.00 GiB.\n"
    )
    word = "[2026-05-04 11:00:00] Subprocess scheduler_0 (pid=7) crashed with exit code -9. Triggering SIGQUIT\n"
    killed = classify(Evidence(log=skipped + start("ready") + decode() + word, exit_code=-9))
    assert killed is not None
    assert killed.kind is Kind.KILLED
    starting = classify(Evidence(log=start("capture") + skipped + crash(OOM, rank="TP1"), exit_code=-9))
    assert starting is not None
    assert starting.kind is Kind.GPU_OOM_GRAPH_CAPTURE


def test_a_restart_in_the_same_log_is_a_new_life() -> None:
    first = start("ready") + crash(OOM)
    assert classify(Evidence(log=first + start("ready") + decode())) is None
    second = classify(Evidence(log=first + start("pool") + crash("RuntimeError: CUDA error: unknown error")))
    assert second is not None
    assert second.kind is Kind.CUDA_CRASH


@pytest.mark.parametrize("prefix", [
    "2026-05-04T10:04:00.123456789Z stderr F ",
    "(Engine pid=4711, ip=10.0.0.4) ",
    "sglang-1  | ",
    "May  4 10:04:00 box sglang[4711]: ",
    "3: ",
])  # fmt: skip
def test_every_carrier(prefix: str) -> None:
    log = "\n".join(prefix + line for line in (start("ready") + crash(OOM, rank="TP2")).split("\n"))
    failure = classify(Evidence(log=log))
    assert failure is not None
    assert (failure.kind, failure.stage, failure.rank) == (Kind.GPU_OOM_RUNTIME, Stage.FIRST_PREFILL, "TP2")


def test_little_free_before_the_weights_is_somebody_else() -> None:
    log = start("weights").replace("78.10", "31.00") + crash(OOM)
    failure = classify(Evidence(log=log))
    assert failure is not None
    assert failure.kind is Kind.GPU_BUSY_OTHER_PROCESS
    assert failure.culprit is Culprit.INFRASTRUCTURE
    assert not failure.teaches
    assert failure.retry


def test_masked_library_errors_are_memory_only_where_little_was_free() -> None:
    error = "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"
    roomy = classify(Evidence(log=start("capture") + crash(error)))
    tight = classify(Evidence(log=start("capture").replace("6.90", "0.21") + crash(error)))
    assert roomy is not None
    assert tight is not None
    assert (roomy.kind, tight.kind) == (Kind.CUDA_CRASH, Kind.GPU_OOM_GRAPH_CAPTURE)


def test_secrets_do_not_stand_in_the_evidence() -> None:
    log = "launch.py: error: unrecognized arguments: --api-key sk-very-secret-0123456789 --x\n"
    failure = classify(Evidence(log=log, exit_code=2))
    assert failure is not None
    assert "very-secret" not in repr(failure)


def test_a_killed_child_is_the_kernels_only_where_host_memory_fills() -> None:
    word = (
        "[2026-05-04 10:03:00] Subprocess scheduler_0 (pid=77) crashed with exit code -9. Triggering SIGQUIT for "
        "cleanup...\n"
    )
    pinning = start("summary") + (
        "[2026-05-04 10:02:42 TP0] Allocating kv hierarchical KV host pool: 900 tokens, 48.00 GB host memory.\n"
        "[2026-05-04 10:02:42 TP1] Allocating kv hierarchical KV host pool: 900 tokens, 48.00 GB host memory.\n"
    )
    kernel = classify(Evidence(log=pinning + word, exit_code=-9))
    cleared = classify(Evidence(log=pinning + word, exit_code=-9, oom_kills=0))
    serving = classify(Evidence(log=start("ready") + word, exit_code=-9))
    counted = classify(Evidence(log=start("ready") + word, exit_code=-9, oom_kills=2))
    assert kernel is not None
    assert kernel.kind is Kind.HOST_OOM_KILLED
    assert kernel.hicache_direction is Direction.DOWN
    assert kernel.numbers.host_requested_gb == pytest.approx(96.0)
    assert cleared is not None
    assert cleared.kind is Kind.KILLED
    assert serving is not None
    assert serving.kind is Kind.KILLED
    assert counted is not None
    assert counted.kind is Kind.HOST_OOM_KILLED


def test_the_kernels_old_kills_of_others_are_not_ours() -> None:
    kernel_log = "Out of memory: Killed process 4000 (firefox) total-vm:1kB, anon-rss:1kB"
    others = classify(Evidence(log=start("ready"), exit_code=-9, kernel_log=kernel_log, own_pids=frozenset({77})))
    ours = classify(Evidence(log=start("ready"), exit_code=-9, kernel_log=kernel_log, own_pids=frozenset({4000})))
    assert others is not None
    assert others.kind is Kind.KILLED
    assert ours is not None
    assert ours.kind is Kind.HOST_OOM_KILLED


def test_answers_but_finishes_nothing() -> None:
    failure = classify(Evidence(log=start("ready"), answers_health=True, finished_recently=False))
    assert failure is not None
    assert failure.kind is Kind.HANG_RUNTIME
    assert not failure.teaches
    assert classify(Evidence(log=start("ready"), answers_health=True, finished_recently=True)) is None


def test_what_we_ended_did_not_fail() -> None:
    assert classify(Evidence(log=start("ready"), exit_code=-9, ended_by_us=True)) is None
