"""Small screens: what matters is whole, GPUs that are alike share a row, and no number loses its end."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tui.panels.alike import groups_of, indices, spread
from tui.panels.bars import Bar, header_row
from tui.panels.detail import memory_page
from tui.panels.gpus import is_odd
from tui.panels.look import Look
from tui.panels.row import Row, clip_end, cut
from tui.snapshot import Snapshot
from tui.view import View, panel_rows


def rows_of(snapshot: Snapshot, width: int, height: int) -> list[Row]:
    return panel_rows(snapshot, View(), width, height, Look())


@pytest.mark.parametrize("size", [(60, 13), (80, 22)])
def test_who_waits_and_how_full_the_pool_is_are_always_told(feed: SimpleNamespace, size: tuple[int, int]) -> None:
    text = "\n".join(row.text for row in rows_of(feed.watched(feed.busy), *size))
    for figure in (r"waiting +79\b", r"waiting +0\b", r"KV +97%", r"KV +13%", r"0-3 .* 90\.6/95\.6 GiB each"):
        assert re.search(figure, text), text


@given(st.text("ab 0123456789.,KM%", max_size=30), st.integers(0, 30))
def test_cut_keeps_numbers_whole(text: str, width: int) -> None:
    left = cut(text, width)
    assert text.startswith(left)
    assert len(left) <= width
    rest = text[len(left) :]
    assert not (rest[:1].isdigit() and left[-1:].isdigit())


def test_a_number_goes_with_its_unit() -> None:
    assert cut("holds 154 K used", 9) == "holds "
    assert cut("took 850 ms", 10) == "took "
    assert cut("0.47 resp/s", 6) == ""
    assert clip_end("79 wait; 5.5 GiB left", 13) == "79 wait; …"
    assert clip_end("79 wait", 7) == "79 wait"


def test_nothing_is_counted_before_it_was_read(feed: SimpleNamespace) -> None:
    bar = Bar("box", "", "")
    assert header_row(Snapshot(0.0), bar, 100).text.split() == ["kvtop", "box"]
    assert "GPU" not in header_row(feed.watched(feed.no_gpu), bar, 100).text
    assert "8 GPUs" in header_row(feed.watched(feed.ceiling), bar, 100).text


def test_what_is_out_of_the_ordinary_is_not_folded_away(feed: SimpleNamespace) -> None:
    gpus = feed.watched(feed.ceiling).gpus
    assert [indices(group) for group in groups_of(gpus, is_odd)] == ["0-7"]
    weak = replace(gpus[3], sample=replace(gpus[3].sample, power_w=212.0))
    hot = replace(gpus[5], sample=replace(gpus[5].sample, throttle_reasons=("thermal",)))
    groups = groups_of((*gpus[:3], weak, gpus[4], hot, *gpus[6:]), is_odd)
    assert [indices(group) for group in groups] == ["0-2,4,6-7", "3", "5"]
    assert [len(group) for group in groups_of(feed.watched(feed.odd_gpus).gpus, is_odd)] == [1, 1, 1, 1]


def test_a_spread_with_an_unknown_is_unknown() -> None:
    assert spread([1.0, None], lambda value: "—" if value is None else f"{value:.0f}") == "—"
    assert spread([1.0, 3.0, 2.0], "{:.0f}%".format) == "1-3%"
    assert spread([2.0, 2.0], "{:.0f}".format) == "2"


def test_memory_by_part_adds_up_to_the_total(feed: SimpleNamespace) -> None:
    for row in memory_page(feed.watched(feed.ceiling), 120, Look())[2:]:
        _, *parts, total = map(float, row.text.split())
        assert sum(parts) == pytest.approx(total, abs=0.05 * len(parts))
    assert "lost" in memory_page(feed.watched(feed.odd_gpus), 80, Look())[3].text
