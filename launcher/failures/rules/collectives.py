"""Ranks that wait for one another: what a dead or stuck peer looks like from the others. Mostly a consequence."""

from __future__ import annotations

from launcher.failure import Culprit, Kind
from launcher.failures.rule import Rule, Weight, Where, words

PEER = Rule(
    Kind.PEER_FAILURE,
    words(
        r"Connection (?:closed|reset|refused) by (?:remote )?peer",
        r"\b(?:gloo|pair\.cc|ProcessGroupGloo)\b[^\n]*(?:Connection|Broken pipe|closed|reset)",
        r"remote process exited or there was a network error|ncclRemoteError",
        r"Connection was likely closed\. Did the remote server shutdown or crash",
        r"TCPStore[^\n]*(?:Broken pipe|closed|reset|failed to recv)|failed to recv, got 0 bytes",
        r"\bDist(?:Network|Backend|Store)Error\b[^\n]*(?:Broken pipe|closed|reset|recv)",
        r"(?:another|other|peer) (?:rank|worker|process)[^\n]*(?:died|exited|terminated|failed|crashed)",
        r"NCCL communicator was aborted",
        r"there are other ranks that didn't finish loading",
    ),
    source="gloo transport/tcp/pair.cc (#4205); NCCL; TCPStore; model_runner.load_model (#4503)",
    sentence="this rank died because another one did: the cause is in that rank's or node's log",
    culprit=Culprit.UNKNOWN,
    weight=Weight.CONSEQUENCE,
    retry=True,
)

TIMEOUT = Rule(
    Kind.HANG_NCCL_TIMEOUT,
    words(
        r"Watchdog caught collective operation timeout",
        r"collective operation[^\n]*tim(?:ed|eout)",
        r"WorkNCCL\([^\n]*ran for \d+ milliseconds before timing out",
        r"Some NCCL operations have failed or timed out",
        r"ProcessGroupNCCL's watchdog got stuck|HeartbeatMonitor[^\n]*(?:stuck|timed? ?out)",
        r"N?CCL (?:error|failure|operation)[^\n]*\btime(?:d )?out\b",
        r"Timed out waiting \d+ ?ms for (?:recv|send) operation",
        r"(?:monitored)?[Bb]arrier[^\n]*timed? ?out",
        r"(?:Dist\w+Error|TCPStore|rendezvous)[^\n]*[Tt]imed out",
        r"client socket has timed out",
    ),
    source="torch ProcessGroupNCCL.cpp, gloo, TCPStore",
    sentence="a collective timed out: a rank hung, or is gone",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    weight=Weight.CONSEQUENCE,
    retry=True,
)

OTHER = Rule(
    Kind.UNKNOWN,
    words(
        r"N?CCL error",
        r"\bncclSystemError\b|\bncclInternalError\b|\bncclInvalidUsage\b",
        r"unhandled (?:cuda|system) error",
    ),
    source="NCCL through pynccl and torch; NCCL_DEBUG=WARN would say why",
    sentence="a communicator failed without saying why (NCCL_DEBUG=WARN would); memory or the network are suspects",
    culprit=Culprit.UNKNOWN,
    weight=Weight.SUSPECT,
    retry=True,
    quote=True,
)

RULES = (TIMEOUT, PEER)
LAST = (OTHER,)
