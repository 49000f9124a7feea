"""The real SGLang on the CPU that `make test-sglang` installs and names in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from launcher.config import FlagValue, ServerConfig
from launcher.ports import free_port
from launcher.server import LaunchRequest
from launcher.version import detect_build


@dataclass(frozen=True)
class CpuSglang:
    """How to start it: the tiny model, no tokenizer, and a KV pool set by --max-total-tokens."""

    python: str
    model_path: str
    env: dict[str, str] = field(
        default_factory=lambda: {
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
            "OMP_NUM_THREADS": "1",
            # An empty value switches it off: without .pyc files a start takes twice as long.
            "PYTHONDONTWRITEBYTECODE": "",
        }
    )
    flags: dict[str, FlagValue] = field(
        default_factory=lambda: {
            "skip-tokenizer-init": True,
            "device": "cpu",
            "attention-backend": "torch_native",
            "enable-metrics": True,
            "max-total-tokens": 4096,
        }
    )
    mem_fraction_static: float = 0.05

    @property
    def command(self) -> tuple[str, ...]:
        return (self.python, "-m", "sglang.launch_server")

    def request(self, log_path: Path, *, avoid: int = 0) -> LaunchRequest:
        """One launch, on any port but `avoid`."""
        return LaunchRequest(
            command=self.command,
            config=ServerConfig(self.model_path, self.mem_fraction_static, flags=self.flags),
            build=detect_build(self.command, self.env, timeout_s=60),
            port=free_port({avoid}),
            env=self.env,
            log_path=log_path,
        )


@pytest.fixture(scope="session")
def cpu_sglang() -> CpuSglang:
    python, model = os.environ.get("KVTUNE_SGLANG_PYTHON"), os.environ.get("KVTUNE_TINY_LLAMA")
    if not python or not model or not Path(python).exists():
        pytest.fail("these tests need the real SGLang: run them with `make test-sglang`")
    return CpuSglang(python, model)
