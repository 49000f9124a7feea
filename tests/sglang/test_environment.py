"""The installed SGLang is the one that the other tests here rely on."""

from __future__ import annotations

import subprocess

import pytest

pytestmark = pytest.mark.sglang


def test_the_installed_version_is_the_pinned_one(cpu_sglang) -> None:  # type: ignore[no-untyped-def]
    asked = "import importlib.metadata as m; print(m.version('sglang'))"
    answer = subprocess.run([cpu_sglang.python, "-c", asked], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "0.5.18"
