"""The KV pool, the request table or a hybrid model's state pool had no room and the server died of it. These count
tokens and slots, not bytes: another mem-fraction moves the day, not the bug."""

from __future__ import annotations

from launcher.failure import Culprit, Kind
from launcher.failures.rule import Rule, words

EXHAUSTED = Rule(
    Kind.KV_POOL_EXHAUSTED,
    words(
        r"(?:Prefill|Decode|Extend)\w* (?:ran )?out of memory\. Try to lower your batch size",
        r"(?:Prefill|Decode|Extend)\w* out of memory\b(?! happened).*\n.*Try to allocate \d+ tokens",
        r"No space left for only one request",
        r"alloc_\w+ (?:runs|ran) out of memory",
        r"(?:Not enough|No) (?:space|slots?|room)[^\n]{0,40}(?:pool|req_to_token|mamba|KV)",
        r"(?:kv|token_to_kv|req_to_token|mamba|state)[\w ]*pool[\w ]* (?:is )?(?:exhausted|full\b(?!\. Retract))",
        r"Failed to allocate[^\n]{0,40}(?:mamba|kv (?:cache )?(?:slots|pages|blocks|indices))",
    ),
    source="0.4.4 (#4602) to 0.5.16 (#34676, #36473) mem_cache/common.py; <= 0.5.6 schedule_batch.retract_decode",
    sentence="the pool of KV tokens had no room and the scheduler died of it: lower the concurrency",
    culprit=Culprit.SERVER_BUG,
)

LEAK = Rule(
    Kind.UNKNOWN,
    words(r"(?:pool|memory) leak(?:ed)? detected", r"memory leak\b[^\n]*available_size"),
    source="scheduler.check_memory, 0.4.x-0.5.23: an idle server whose pool does not add up ends itself",
    sentence="SGLang's own check found its KV pool's books wrong: a bug in the server, not a lack of memory",
    culprit=Culprit.SERVER_BUG,
    retry=True,
)

RULES = (EXHAUSTED, LEAK)
