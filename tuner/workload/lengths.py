"""Answer lengths that only the model knows, learned from what the first level finished."""

from __future__ import annotations

from dataclasses import replace

from tuner.workload.request import Request


class LengthBook:
    """What is known of answers whose length the model decides (it stops at its end of sequence).

    The requests that finish early in a level are the short ones, so their mean would be too small. Tokens
    generated per finish, unfinished answers included, is the mean length in a steady closed loop (renewal
    theorem).
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self._generated_tokens = 0
        self._finished = 0

    def learn(self, request: Request, generated_tokens: int, *, finished: bool) -> None:
        """Record an answer, or the part of it that there was when the level ended."""
        if request.ignore_eos:
            return
        self._generated_tokens += generated_tokens
        if finished:
            self._finished += 1
            self._seen[_name(request)] = generated_tokens

    def expect(self, request: Request) -> Request:
        """The request with the length to expect of it, unless it has one or nothing is known."""
        if request.output_tokens is not None or not self._finished:
            return request
        mean = max(1, self._generated_tokens // self._finished)
        expected = min(request.max_tokens, self._seen.get(_name(request), mean))
        return replace(request, output_tokens=expected)


def _name(request: Request) -> str:
    """The request's name in its file, without the count of its plays."""
    return request.request_id.partition("#")[0]
