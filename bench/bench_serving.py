"""SGLang's own load generator, run in its own environment beside ours, never imported.

The interpreter that has SGLang is named by KVTUNE_SGLANG_PYTHON (`sh scripts/with-cpu-sglang COMMAND` sets it).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PYTHON_VARIABLE = "KVTUNE_SGLANG_PYTHON"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
LIMIT_S = 180.0

_MAKE_TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(1000)}, unk_token="w0"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", eos_token="w1").save_pretrained(sys.argv[1])
"""
"""It insists on a tokenizer; a thousand words are one."""


@dataclass(frozen=True, slots=True)
class ServingJob:
    """Requests in a closed loop, of one length or spread evenly from a share of it to the whole."""

    url: str
    model: str
    requests: int
    concurrency: int
    input_tokens: int
    output_tokens: int
    stream: bool
    shortest_share: float = 1.0
    """The shortest prompt and answer, as a share of the longest."""

    def arguments(self, tokenizer: Path, output: Path) -> list[str]:
        named = {
            "backend": "sglang",
            "base-url": self.url,
            "model": self.model,
            "tokenizer": tokenizer,
            "dataset-name": "random-ids",
            "random-input-len": self.input_tokens,
            "random-output-len": self.output_tokens,
            "random-range-ratio": self.shortest_share,
            "num-prompts": self.requests,
            "max-concurrency": self.concurrency,
            "output-file": output,
        }
        switches = ["--tokenize-prompt", "--disable-tqdm", "--output-details"]
        whole = () if self.stream else ("--disable-stream",)
        return [*(f"--{name}={value}" for name, value in named.items()), *switches, *whole]


def sglang_python() -> str | None:
    """The interpreter that has SGLang; None where none is named."""
    return os.environ.get(PYTHON_VARIABLE) or None


def make_tokenizer(python: str, directory: Path) -> None:
    """Write a tokenizer of a thousand words."""
    environment = {**os.environ, **OFFLINE}
    subprocess.run([python, "-c", _MAKE_TOKENIZER, str(directory)], check=True, env=environment)


def run_bench_serving(python: str, job: ServingJob) -> Mapping[str, object]:
    """The figures that `sglang.bench_serving` writes for a job. Leaves with its words when it fails."""
    with tempfile.TemporaryDirectory() as directory:
        tokenizer, output = Path(directory) / "tokenizer", Path(directory) / "out.jsonl"
        make_tokenizer(python, tokenizer)
        command = [python, "-m", "sglang.bench_serving", *job.arguments(tokenizer, output)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **OFFLINE}, check=False
        )
        if done.returncode or not output.exists():
            sys.exit(f"bench_serving failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        figures: Mapping[str, object] = json.loads(output.read_text().splitlines()[-1])
        return figures
