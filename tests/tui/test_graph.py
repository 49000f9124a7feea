import math

from hypothesis import given
from hypothesis import strategies as st

from tui.panels.graph import graph_rows, meter, nice_top, stacked
from tui.panels.look import PARTS, Look
from tui.panels.row import Pen, clip, one_cell_each

COLOR, ASCII = Look(), Look(color=False, ascii=True)
numbers = st.one_of(st.just(math.nan), st.floats(0, 1e7))


@given(st.lists(numbers, max_size=700), st.integers(0, 10**6), st.integers(1, 200), st.integers(1, 20))
def test_graphs_have_exactly_their_size(values: list[float], bucket: int, width: int, height: int) -> None:
    top = nice_top(values)
    for look in (COLOR, ASCII):
        rows = graph_rows([(values, "running"), (values, "waiting")], bucket, width, height, top, look)
        assert [sum(len(text) for text, _ in row) for row in rows] == [width] * height


@given(st.lists(st.floats(0, 1e12), min_size=len(PARTS), max_size=len(PARTS)), st.integers(1, 300))
def test_bars_have_exactly_their_width(sizes: list[float], width: int) -> None:
    parts = list(zip(PARTS, sizes, strict=True))
    total = sum(sizes)
    cells = sum(len(text) for text, _ in stacked(parts, total, width, COLOR))
    assert cells == (width if total > 0 else 0)


@given(st.lists(st.floats(0, 1e9), max_size=50))
def test_the_top_of_a_scale_holds_every_value(values: list[float]) -> None:
    assert max(values, default=0.0) <= nice_top(values) * 1.001


def test_graphs_scroll_by_whole_cells() -> None:
    """An odd new bucket only adds a dot; an even one moves the picture."""
    values = [float(i % 7) for i in range(100)]
    before = graph_rows([(values, "a")], 100, 30, 4, 7.0, COLOR)
    after = graph_rows([([*values, 3.0], "a")], 101, 30, 4, 7.0, COLOR)
    for old, new in zip(before, after, strict=True):
        assert "".join(t for t, _ in old)[:-1] == "".join(t for t, _ in new)[:-1]


def test_meters_of_the_unknown_are_empty() -> None:
    assert meter(None, 10, "usage", ASCII) == [("", "usage"), ("-" * 10, "free")]


@given(st.lists(st.text(max_size=40), max_size=8), st.integers(1, 60))
def test_a_pen_never_leaves_its_row(texts: list[str], width: int) -> None:
    pen = Pen(width)
    for text in texts:
        pen.put(text).gap()
    row = pen.row()
    assert row.width == width
    assert all(char.isprintable() for char in row.text)


@given(st.text(max_size=60), st.integers(4, 40))
def test_clipped_text_fits(text: str, width: int) -> None:
    assert len(clip(text, width)) <= width


def test_wide_characters_of_a_name_do_not_break_columns() -> None:
    assert one_cell_each("模型-7B\x1b[31m") == "??-7B?[31m"
