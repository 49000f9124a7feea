"""Pieces of logs for the tests of this folder, in SGLang's form and with our own figures."""

from __future__ import annotations


def start(upto: str = "ready", rank: str = "TP0") -> str:
    """A start-up (0.5.12 wording) as far as the step of this name."""
    steps = {
        "launch": "[2026-05-04 10:00:00] server_args=ServerArgs(model_path='/m/x', mem_fraction_static=0.91, tp_size=8)",
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
