from hypothesis import given
from hypothesis import strategies as st

from tui.layout import NAMES, Content, heights


@st.composite
def contents(draw: st.DrawFn) -> Content:
    """Every group has a GPU of its own at least."""
    gpus = draw(st.integers(0, 64))
    groups = draw(st.integers(min(1, gpus), min(gpus, 8)))
    trials = draw(st.none() | st.integers(0, 60))
    return Content(gpus, groups, draw(st.integers(0, 12)), trials, draw(st.integers(0, 3)))


@given(st.integers(1, 120), contents(), st.frozensets(st.sampled_from(NAMES)))
def test_panels_never_overflow_the_screen(height: int, content: Content, shown: frozenset[str]) -> None:
    given_lines = heights(height, content, shown)
    assert sum(given_lines.values()) <= height
    assert all(lines == 0 for name, lines in given_lines.items() if name not in shown)


def test_eighty_by_twenty_four_shows_what_matters() -> None:
    lines = heights(22, Content(8, 2, 1, None), frozenset(NAMES))
    assert lines["binds"] == 3
    assert lines["gpus"] == 3
    assert lines["servers"] >= 3


@given(st.integers(1, 120), contents())
def test_gpus_are_folded_or_unfolded_and_never_half(height: int, content: Content) -> None:
    lines = heights(height, content, frozenset(NAMES))["gpus"]
    assert lines in {0, 1 + max(1, min(content.gpu_groups, 8)), 1 + max(1, content.gpu_groups), 1 + content.gpus}


def test_a_hidden_panels_lines_go_to_the_others() -> None:
    content = Content(8, 2, 2, 7)
    without = heights(46, content, frozenset(NAMES) - {"gpus"})
    assert sum(without.values()) == 46
    assert without["history"] > heights(46, content, frozenset(NAMES))["history"]
