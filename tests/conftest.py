"""Where the shared test data lies: beside the checkout, or where KVTUNE_SHARED points; tests skip without it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("KVTUNE_SHARED", Path(__file__).resolve().parents[2] / "shared"))


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip(f"the shared captures and cases are not at {SHARED}")
    return SHARED
