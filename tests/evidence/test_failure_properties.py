"""What holds of every log: a verdict or none, never an exception; and no line of a serving server changes it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.failure import Kind
from launcher.failures import Evidence, classify

PIECES = [
    "[2026-05-04 10:00:00 TP0] Load weight begin. avail mem=78.10 GB",
    "[2026-05-04 10:00:00 DP1 TP3] Memory pool end. avail mem=x GB",
    "[2026-05-04 10:00:10] The server is fired up and ready to roll!",
    "[2026-13-99 99:00:00] server_args=ServerArgs(mem_fraction_static=)",
    "Traceback (most recent call last):",
    '  File "x.py", line 1, in event_loop_normal',
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate . GPU has a total capacity of",
    "Exception: Capture cuda graph failed: ",
    "Killed",
    "Subprocess scheduler_0 (pid=1) crashed with exit code -9999",
    "(Actor pid=1) 2026-05-04T10:00:00Z stdout F ",
    "Decode batch, #running-req: , #token: 1..2, token usage: 9%",
    "",
]
logs = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=40)), max_size=12).map("\n".join)
codes = st.one_of(st.none(), st.integers(-70, 300))


@settings(max_examples=150, deadline=None)
@given(log=logs, exit_code=codes)
def test_any_log_gets_a_verdict(log: str, exit_code: int | None) -> None:
    failure = classify(Evidence(log=log, exit_code=exit_code, kernel_log=log))
    if failure is not None:
        assert failure.sentence
        assert "\n" not in failure.sentence
        assert failure.exit_code in (exit_code, None)
        assert not (failure.teaches and failure.kind in (Kind.PORT_IN_USE, Kind.GPU_BUSY_OTHER_PROCESS, Kind.KILLED))


DECODE = "[2026-05-04 10:0{}:00 TP0] Decode batch, #running-req: 7, #token: 512, token usage: 0.05, #queue-req: 2\n"
CRASH = "[2026-05-04 10:09:00 TP0] Scheduler hit an exception: Traceback (most recent call last):\n{}\n"


@settings(max_examples=40, deadline=None)
@given(minutes=st.lists(st.integers(0, 8), max_size=6))
def test_what_was_served_before_changes_no_verdict(minutes: list[int]) -> None:
    error = CRASH.format("RuntimeError: Decode out of memory. Try to lower your batch size.\nTry to allocate 3 tokens.")
    served = "".join(DECODE.format(minute) for minute in minutes)
    failure = classify(Evidence(log=served + error))
    assert failure is not None
    assert failure.kind is Kind.KV_POOL_EXHAUSTED
