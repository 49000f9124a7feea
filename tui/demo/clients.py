"""The demo's clients: `python -m tui.demo.clients URL N` keeps N requests in flight until it is ended."""

from __future__ import annotations

import asyncio
import random
import sys

import httpx

SYSTEM_PROMPT = list(range(256))
"""Token ids that all prompts share: something for the radix cache."""
PROMPT_TOKENS = (300, 1700)
OUTPUT_TOKENS = (500, 2300)
RAMP_S = 20.0
"""Clients come one after the other, so that their requests have mixed ages."""


async def client(http: httpx.AsyncClient, chance: random.Random, first_after_s: float) -> None:
    await asyncio.sleep(first_after_s)
    while True:
        try:
            await http.post("/generate", json=request(chance))
        except httpx.HTTPError:
            await asyncio.sleep(1.0)


def request(chance: random.Random) -> dict[str, object]:
    tail = [chance.randrange(1000, 100_000) for _ in range(chance.randint(*PROMPT_TOKENS))]
    sampling = {"max_new_tokens": chance.randint(*OUTPUT_TOKENS), "ignore_eos": True}
    return {"input_ids": SYSTEM_PROMPT + tail, "sampling_params": sampling}


async def run(url: str, clients: int) -> None:
    chance = random.Random(7)
    limits = httpx.Limits(max_connections=clients)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        await asyncio.gather(*(client(http, chance, RAMP_S * place / clients) for place in range(clients)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))
