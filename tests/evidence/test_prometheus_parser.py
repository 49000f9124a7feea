"""The parser of our own against the library it stands in for."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from launcher.errors import Unparsable
from launcher.observe.prometheus import Exposition, Parser, parse

Key = tuple[str, tuple[tuple[str, str], ...], str, str]

names = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,12}", fullmatch=True)
label_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not name.startswith("__")
)
label_values = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\r"), max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False).map(repr)
values = st.one_of(finite, st.integers(-(2**52), 2**52).map(str), st.sampled_from(["NaN", "+Inf", "-Inf", "1e-9"]))
timestamps = st.one_of(st.just(""), st.integers(0, 2**41).map(lambda ms: f" {ms}"))
gaps = st.sampled_from(["", " "])


@st.composite
def sample_lines(draw: st.DrawFn, name: str) -> str:
    labels = draw(st.dictionaries(label_names, label_values, max_size=3))
    gap = draw(gaps)
    parts = [f'{key}="{_escaped(value)}"' for key, value in labels.items()]
    inside = (f"{gap},{gap}").join(parts) + (draw(st.sampled_from(["", ","])) if parts else "")
    braces = f"{{{inside}}}" if parts or draw(st.booleans()) else ""
    return f"{name}{braces} {draw(values)}{draw(timestamps)}{draw(gaps)}"


@st.composite
def expositions(draw: st.DrawFn) -> str:
    """Families with their comments, as servers write them; counters end in `_total`, as the library wants them."""
    lines: list[str] = []
    for name in draw(st.lists(names, min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from(["gauge", "untyped", None]))
        if kind is not None:
            lines += [f"# HELP {name} some \\n words", f"# TYPE {name} {kind}"]
        lines += draw(st.lists(sample_lines(name), max_size=4))
        lines += draw(st.sampled_from([[], [""], ["# a comment"]]))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def ours(exposition: Exposition) -> list[Key]:
    return sorted(_key(one.name, dict(one.labels), one.value, one.timestamp_s) for one in exposition)


def theirs(text: str) -> list[Key]:
    families = text_string_to_metric_families(text)
    return sorted(_key(s.name, s.labels, s.value, s.timestamp) for family in families for s in family.samples)


def _key(name: str, labels: dict[str, str], value: float, timestamp_s: object) -> Key:
    moment = "" if timestamp_s is None else repr(float(str(timestamp_s)))
    return name, tuple(sorted(labels.items())), repr(float(value)), moment


@settings(max_examples=120, deadline=None)
@given(expositions())
def test_the_same_samples_as_the_library(text: str) -> None:
    assert ours(parse(text)) == theirs(text)


@settings(max_examples=40, deadline=None)
@given(st.lists(expositions(), min_size=2, max_size=3))
def test_what_was_remembered_changes_nothing(texts: list[str]) -> None:
    parser = Parser()
    for text in (*texts, *texts):
        assert ours(parser.parse(text)) == theirs(text)


def test_every_capture(shared: Path) -> None:
    for path in shared.glob("captures/*/*metrics*"):
        text = path.read_text()
        text = text.partition("\n")[2] if text.startswith("HTTP ") else text
        parser = Parser()
        parser.parse(text)
        assert ours(parser.parse(text)) == theirs(text), path


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>502 Bad Gateway</body></html>",
        '{"detail": "Not Found"}',
        'name{a="b" 1',
        'name{a="b"}',
        'name{a="b"} one',
        'name{a="b",a="c"} 1',
        "name 1_000",
        "1name 2",
    ],
)
def test_what_is_not_prometheus_text_is_refused(text: str) -> None:
    with pytest.raises(Unparsable):
        parse(text)
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own, of several wordings
        list(text_string_to_metric_families(text))


def test_not_a_number_stays_one() -> None:
    ((_, value),) = parse("x NaN").get("x")
    assert math.isnan(value)
