"""The server's own cap on running requests, held for a level while the server runs on.

`/set_internal_state` changes `pp_max_micro_batch_size` live, between 1 and the launch's --max-running-requests, and
that is what SGLang admits by even without pipeline parallelism (`scheduler.get_num_allocatable_reqs`, 0.5.6 to
0.5.23). Builds up to 0.5.10 say `updated` even when nothing was: what counts is what the server tells afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from tuner.load import LoadClient

OUT_TO_CAP = 8
"""How many requests an open loop may have out, in times the cap: a queue that is longer only grows."""
_NAME = "pp_max_micro_batch_size"
_SET, _INFO = "/set_internal_state", "/server_info"


@contextlib.asynccontextmanager
async def admission_cap(client: LoadClient, requests: int | None) -> AsyncIterator[int | None]:
    """Let the server run at most `requests` at once, all DP ranks together, and restore its own cap afterwards.

    Yields the cap that is held: None when none is asked for, or when this server does not take it (an older build,
    pipeline stages, a launch that allows fewer).
    """
    before = await _caps(client) if requests else ()
    each = (requests or 0) // max(1, len(before))
    held = bool(each and before) and each <= min(before) and await _hold(client, each, len(before))
    try:
        yield each * len(before) if held else None
    finally:
        if held:
            await _hold(client, min(before), len(before))


async def _hold(client: LoadClient, each: int, ranks: int) -> bool:
    await client.ask(_SET, {"server_args": {_NAME: each}})
    return await _caps(client) == (each,) * ranks


async def _caps(client: LoadClient) -> tuple[int, ...]:
    """The cap of each DP rank; nothing where the server does not tell all of them."""
    info = await client.ask(_INFO)
    states = info.get("internal_states") if isinstance(info, Mapping) and info.get("pp_size", 1) == 1 else None
    caps = [state.get(_NAME) for state in states if isinstance(state, Mapping)] if isinstance(states, list) else []
    known = tuple(cap for cap in caps if isinstance(cap, int))
    return known if len(known) == len(caps) else ()
