"""The server's own watchdog, and warm-ups that fail."""

from __future__ import annotations

from launcher.failure import Culprit, Kind, Stage
from launcher.failures.rule import Rule, Weight, Where, words

WATCHDOG = Rule(
    Kind.HANG_WATCHDOG,
    words(
        r"watchdog timeout \((?![^)]*soft=True)",
        r"watchdog[^\n]*(?:timed out|triggered)[^\n]*(?:kill|SIGQUIT|abort|exit)",
    ),
    source='"Watchdog timeout (self.watchdog_timeout=300)" 0.4.8 (#7553); "Scheduler watchdog timeout" 0.5.23, '
    "where soft=True only warns",
    sentence="SGLang's watchdog ended a scheduler that did not finish a step: a hang, not memory",
    culprit=Culprit.SERVER_BUG,
    where=Where.LINE,
    weight=Weight.SUSPECT,
    retry=True,
    survivable=False,
)

WARM_UP = Rule(
    Kind.WARMUP_FAILED,
    words(
        r"Initialization failed\.[^\n]*warm-?up",
        r"warm-?up (?:request )?(?:error|failed|timed out)",
        r"(?:error|exception|fail\w*)[^\n]{0,30}(?:in|during|at) (?:server )?warm-?up",
    ),
    source="0.4.10-0.5.23 http_server.py, _execute_server_warmup",
    sentence="the warm-up request failed though the scheduler was up: look at proxies (http_proxy, no_proxy)",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    weight=Weight.SUSPECT,
    stage=Stage.WARM_UP,
    quote=True,
)

DETOKENIZER_SILENT = Rule(
    Kind.HANG_RUNTIME,
    words(r"Health check failed\. Server couldn't get a response from (?:the )?detokenizer"),
    source="0.4.10-0.5.23 http_server.py, health_generate; it may come back",
    sentence="the server answers, but nothing comes out of the scheduler any more",
    culprit=Culprit.INFRASTRUCTURE,
    where=Where.LINE,
    weight=Weight.CONSEQUENCE,
    retry=True,
    stage=Stage.UNDER_LOAD,
)

RULES = (WATCHDOG, WARM_UP, DETOKENIZER_SILENT)
