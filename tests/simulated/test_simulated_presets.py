"""Presets: shipped ones load, a user's mistakes come back as one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.errors import UsageError
from launcher.simulated.presets import load_preset, preset_names, with_overrides

KIMI = "kimi-k2.5-8x-rtx-pro-6000"


def _raw() -> dict[str, object]:
    return load_preset(KIMI).model_dump(mode="json")


def _write(tmp_path: Path, raw: object) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_the_shipped_presets_load_and_say_what_is_derived() -> None:
    presets = [load_preset(name) for name in preset_names()]
    assert [preset.name for preset in presets] == list(preset_names())
    derived = {preset.name for preset in presets if preset.derived}
    assert derived == {"llama-70b-8x-h100", "deepseek-v3-8x-h200"}


def test_a_users_own_file_is_read(tmp_path: Path) -> None:
    assert load_preset(_write(tmp_path, _raw())) == load_preset(KIMI)


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"did you mean 'kimi-k2.5-8x-rtx-pro-6000'\? Known are deepseek"):
        load_preset("kimi-k2.5")


def test_an_unknown_key_names_file_key_and_nearest(tmp_path: Path) -> None:
    raw = _raw()
    raw["box"]["gpu_memory_gb"] = 95  # type: ignore[index]
    with pytest.raises(UsageError, match=r"mine.yaml: box.gpu_memory_gb: unknown key; .*'gpu_memory_gib'"):
        load_preset(_write(tmp_path, raw))


def test_a_wrong_value_is_shown(tmp_path: Path) -> None:
    raw = _raw()
    raw["model"]["layers"] = -3  # type: ignore[index]
    with pytest.raises(UsageError, match=r"model.layers: .*-3"):
        load_preset(_write(tmp_path, raw))


def test_every_section_needs_a_source(tmp_path: Path) -> None:
    raw = _raw()
    raw["sources"] = {"box": "measured"}
    with pytest.raises(UsageError, match="sources: nothing is said of hicache, model"):
        load_preset(_write(tmp_path, raw))


def test_mha_needs_heads(tmp_path: Path) -> None:
    raw = _raw()
    raw["model"]["attention"] = "mha"  # type: ignore[index]
    with pytest.raises(UsageError, match="also needs kv_heads, head_dim"):
        load_preset(_write(tmp_path, raw))


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: [\n", "just words"])
def test_what_is_not_a_mapping_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        load_preset(path)


def test_overrides_are_checked_like_files() -> None:
    preset = with_overrides(load_preset(KIMI), {"model.weights_gib": 70.0})
    assert preset.model.weights_gib == 70.0
    with pytest.raises(UsageError, match="no section 'modl'"):
        with_overrides(preset, {"modl.weights_gib": 1.0})
    with pytest.raises(UsageError, match="nearest valid key is 'weights_gib'"):
        with_overrides(preset, {"model.weight_gib": 1.0})
