"""Keys and tokens leave kvtune nowhere: not in a log, an export, a report or a screen.

A name is secret when it ends like one (`api-key`, `HF_TOKEN`, `ssl_keyfile_password`, `Authorization`);
counts of tokens and tokenizer words (`max_total_num_tokens`, `eos_token`) are not. Values are replaced,
names stay, so that a reader still sees that there was one. The forms are those in which SGLang prints its
arguments: `ServerArgs(api_key= '...')` (up to 0.5.19), a dict (later), the `launch_command` list of
/server_info (from 0.5.20), argv, YAML, env.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import overload

REDACTED = "[redacted]"

_VOCABULARY = "(?<!eos)(?<!bos)(?<!pad)(?<!unk)(?<!sep)(?<!cls)(?<!end)(?<!mask)(?<!stop)(?<!per)(?<!first)"
_SECRET_END = (
    r"(?:api[-_]?keys?|access[-_]?key|private[-_]?key|passwords?|passwd|passphrase|secrets?|credentials?"
    rf"|authorization|{_VOCABULARY}[-_]token|\bbearer[-_]?token)"
)
_SECRET_NAME = re.compile(rf"(?:.*[-_.\s])?{_SECRET_END}$|.*[^-_]+{_VOCABULARY}[-_]token$|token$", re.IGNORECASE)

_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\""""
_VALUE = rf"(?P<value>{_QUOTED}|(?!None\b|null\b)[^\s,;)}}\]'\"]+)"
_ASSIGNED = re.compile(rf"(?P<head>{_SECRET_END}['\"]?\s{{0,3}}[=:]\s{{0,3}}){_VALUE}", re.IGNORECASE)
# The bounds keep a long line from being searched in quadratic time.
_FLAG = re.compile(
    rf"(?P<head>(?<!-)--[\w-]{{0,40}}?{_SECRET_END}(?:['\"]\s{{0,3}},\s{{0,3}}|\s{{1,3}})){_VALUE}",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(?P<scheme>Bearer|Basic)(?P<between>\s+)(?!\[redacted\])[^\s'\",)}\]]+", re.IGNORECASE)
_SHAPE = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,})")
_URL_PASSWORD = re.compile(r"(?P<head>://[^\s/:@]+:)[^\s/@]+(?=@)", re.IGNORECASE)


def is_secret(name: str) -> bool:
    """Whether a flag, variable, key or header of this name holds a secret."""
    return _SECRET_NAME.match(name.lstrip("-")) is not None


@overload
def redact(value: str) -> str: ...
@overload
def redact(value: Mapping[str, object]) -> dict[str, object]: ...
@overload
def redact(value: list[str] | tuple[str, ...]) -> tuple[str, ...]: ...
def redact(
    value: str | Mapping[str, object] | list[str] | tuple[str, ...],
) -> str | dict[str, object] | tuple[str, ...]:
    """The same text, mapping (nested ones too) or argv, with every secret replaced by `[redacted]`."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, Mapping):
        return {name: _redact_item(name, item) for name, item in value.items()}
    return redact_argv(value)


def redact_text(text: str) -> str:
    """Log text, a sentence, YAML or a shell line."""
    text = _SCHEME.sub(rf"\g<scheme>\g<between>{REDACTED}", text)
    text = _FLAG.sub(_keep_head, text)
    text = _ASSIGNED.sub(_keep_head, text)
    text = _SHAPE.sub(REDACTED, text)
    return _URL_PASSWORD.sub(rf"\g<head>{REDACTED}", text)


def redact_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Command words: the word after a secret flag, `--flag=value`, `NAME=value` and headers."""
    words: list[str] = []
    for word in argv:
        follows_secret = bool(words) and words[-1].startswith("-") and is_secret(words[-1])
        name, assigned, _ = word.partition("=")
        if follows_secret:
            words.append(REDACTED)
        elif assigned and is_secret(name):
            words.append(f"{name}={REDACTED}")
        else:
            words.append(redact_text(word))
    return tuple(words)


def _redact_item(name: str, item: object) -> object:
    if isinstance(item, Mapping):
        return redact(item)
    if item is None or isinstance(item, bool) or item == "":
        return item
    if is_secret(name):
        return REDACTED
    if isinstance(item, str):
        return redact_text(item)
    if isinstance(item, list | tuple):
        return _redact_items(name, item)
    return item


def _redact_items(name: str, items: Sequence[object]) -> list[object]:
    """A list in a mapping: argv when it is all words, else item by item."""
    words = [item for item in items if isinstance(item, str)]
    if len(words) == len(items):
        return list(redact_argv(words))
    return [_redact_item(name, item) for item in items]


def _keep_head(match: re.Match[str]) -> str:
    if REDACTED in match["value"] or match["value"] in ("''", '""'):
        return match[0]
    quote = match["value"][0] if match["value"][0] in "'\"" else ""
    return f"{match['head']}{quote}{REDACTED}{quote}"
