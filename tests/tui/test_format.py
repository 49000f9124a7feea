import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui import format as fmt
from tui.panels.detail import diagnosis_page
from tui.panels.look import Look
from tui.view import View, panel_rows


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (math.nan, "—"),
        (0, "0"),
        (75, "75"),
        (999.4, "999"),
        (2_124, "2.12 K"),
        (2_100, "2.1 K"),
        (14_374, "14.4 K"),
        (159_277, "159 K"),
        (999_700, "1 M"),
        (1_250_000, "1.25 M"),
    ],
)
def test_count_keeps_three_digits(value: float | None, text: str) -> None:
    assert fmt.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "—"), (0.0, "0%"), (0.004, "<1%"), (0.125, "13%"), (0.964, "96%"), (1.0, "100%")],
)
def test_share_never_hides_what_is_above_zero(value: float | None, text: str) -> None:
    assert fmt.share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0004, "400 µs"),
        (0.0234, "23 ms"),
        (0.9999, "1.0 s"),
        (1.44, "1.4 s"),
        (75.2, "75 s"),
        (253.0, "4m13s"),
    ],
)
def test_latencies_have_a_unit(value: float, text: str) -> None:
    assert fmt.seconds(value) == text


def test_rates() -> None:
    assert [fmt.rate(v) for v in (None, 0.0, 0.467, 9.3, 930.4, 1317.0)] == [
        "—",
        "0",
        "0.47",
        "9.3",
        "930",
        "1,317",
    ]


@given(st.floats(min_value=0, max_value=1e11))
def test_every_figure_is_short(value: float) -> None:
    assert len(fmt.count(value)) <= 9
    assert len(fmt.seconds(value)) <= 14


@given(st.text())
def test_ascii_is_ascii_of_the_same_width(text: str) -> None:
    shown = fmt.ascii_only(text)
    assert shown.isascii()
    assert len(shown) == len(text)


@pytest.mark.parametrize("name", ["busy", "study_running", "down", "odd_gpus", "dp_ranks"])
def test_ascii_has_a_sign_for_every_sign_that_kvtop_writes(feed: SimpleNamespace, name: str) -> None:
    snapshot = feed.watched(getattr(feed, name))
    look = Look(color=False, ascii=True)
    for width in (60, 80, 160):
        rows = panel_rows(snapshot, View(), width, 46, look) + diagnosis_page(snapshot, width, look)
        assert not [row.text for row in rows if "?" in fmt.ascii_only(row.text)]
