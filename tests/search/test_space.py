"""The space: bounds, the allowlist, ladders, and what is refused before a launch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import StudyFileError
from tuner.space import Space, overrides, refuse_impossible, version_key
from tuner.trial import Setting


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mem_fraction": (0.9, 0.8)}, "mem-fraction-static"),
        ({"mem_fraction": 1.5}, "mem-fraction-static"),
        ({"concurrency": (0, 8)}, "concurrency"),
        ({"kv_cache_dtypes": ("auto",)}, "auto may silently be FP8"),
        ({"kv_cache_dtypes": ("int3",)}, "int3 is not known"),
        ({"kv_cache_dtypes": ()}, "allowlist is empty"),
        ({"hicache_sizes_gb": (-1,)}, "hicache-size"),
        ({"further": {"chunked-prefill-size": ()}}, "chunked-prefill-size"),
    ],
)
def test_bad_spaces_are_refused_by_name(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(StudyFileError, match=words):
        Space(**arguments)  # type: ignore[arg-type]


@given(low=st.integers(1, 500), span=st.integers(0, 1500))
def test_ladder_keeps_both_ends_and_ascends(low: int, span: int) -> None:
    ladder = Space(concurrency=(low, low + span)).concurrency_ladder()
    assert ladder[0] == low
    assert ladder[-1] == low + span
    assert list(ladder) == sorted(set(ladder))


@given(low=st.floats(0.4, 0.9), span=st.floats(0, 0.09))
def test_fractions_stay_in_bounds(low: float, span: float) -> None:
    fractions = Space(mem_fraction=(low, low + span)).fractions()
    assert fractions[0] == low
    assert fractions[-1] == low + span
    assert all(low <= fraction <= low + span for fraction in fractions)


def test_settings_are_the_whole_product() -> None:
    space = Space((0.80, 0.82), ("bfloat16", "fp8_e4m3"), (0, 20), (8, 64), {"page-size": (1, 64)})
    settings = list(space.settings(0.01))
    assert len(settings) == 3 * 2 * 2 * 2
    assert len(list(space.families())) == 8


def test_nearest_moves_a_setting_into_the_space() -> None:
    space = Space((0.80, 0.90), ("bfloat16",), (0, 20), further={"page-size": (1, 64)})
    moved = space.nearest(Setting(0.95, "fp8_e4m3", 48, {"page-size": 32}))
    assert moved == Setting(0.90, "bfloat16", 20, {"page-size": 1})
    assert overrides(moved, space) == 1


def test_refusals_before_a_launch() -> None:
    with pytest.raises(StudyFileError, match="Blackwell"):
        refuse_impossible(
            Space(kv_cache_dtypes=("nvfp4",)), blackwell=False, attention_backend=None, sglang_version=None
        )
    e5m2 = Space(kv_cache_dtypes=("bfloat16", "fp8_e5m2"))
    with pytest.raises(StudyFileError, match="triton"):
        refuse_impossible(e5m2, blackwell=None, attention_backend="fa3", sglang_version=None)
    with pytest.raises(StudyFileError, match="trtllm_mla"):
        refuse_impossible(e5m2, blackwell=None, attention_backend="trtllm_mla", sglang_version=None)
    old = Space(kv_cache_dtypes=("fp4_e2m1",))
    refuse_impossible(old, blackwell=None, attention_backend=None, sglang_version="0.5.17")
    with pytest.raises(StudyFileError, match=r"0\.5\.21"):
        refuse_impossible(old, blackwell=None, attention_backend=None, sglang_version="0.5.23")


def test_version_key_orders_versions() -> None:
    assert version_key("0.5.9") < version_key("0.5.14") < version_key("0.5.17.post1")
    assert version_key("0.5.17+cu129") == (0, 5, 17)
