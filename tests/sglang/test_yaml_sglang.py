"""The YAML that we write, through the real build's own merger and parser: nothing in it is refused, nothing is lost."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.config import FlagValue, ServerConfig
from launcher.flags import to_argv, to_yaml, words_beside_yaml
from launcher.redact import is_secret
from launcher.version import SglangBuild, detect_build

pytestmark = pytest.mark.sglang

OPTIONS = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs

def plausible(action):
    if action.nargs == 0:
        return True
    for value in (*(action.choices or ()), action.default, 1, 0.5, "{}", "text"):
        try:
            known = type(value) in (int, float, str)
            if known and (action.type or str)(str(value)) is not None:
                return [value] if action.nargs in ("+", "*") else value
        except Exception:
            continue

parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
told = {}
for action in parser._actions:
    simple = type(action) in (argparse._StoreAction, argparse._StoreTrueAction)
    for name in action.option_strings:
        told[name] = {"dest": action.dest, "simple": simple, "value": plausible(action)}
print("TOLD " + json.dumps(told))
"""
"""Every option string with its dest, whether YAML knows its action, and a value that its type takes."""

PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
from sglang.srt.server_args_config_parser import ConfigArgumentMerger

parser = argparse.ArgumentParser(exit_on_error=False)
parser.error = lambda message: (_ for _ in ()).throw(ValueError(message))
ServerArgs.add_cli_args(parser)

def meaning(argv):
    try:
        read = parser.parse_args(ConfigArgumentMerger(parser).merge_config_with_args(argv))
    except (Exception, SystemExit) as error:
        return f"refused: {error!r}"
    read.disable_cuda_graph = getattr(read, "disable_cuda_graph", False)
    ServerArgs._parse_cuda_graph_config(read)
    told = {name: repr(value) for name, value in vars(read).items() if name != "config"}
    for name in ("disable_prefill_cuda_graph", "cuda_graph_backend_prefill"):
        told.pop(name)
    told["cuda_graph_config"] = str(read.cuda_graph_config.to_dict())
    return told | {"_cuda_graph_config_locked": sorted(map(str, read._cuda_graph_config_locked))}

print("TOLD " + json.dumps([meaning(argv) for argv in json.load(sys.stdin)]))
"""
"""What each command line means to SGLang; the spellings of the prefill graph are compared by what they resolve to."""

TYPED = {"model-path", "model", "mem-fraction-static", "kv-cache-dtype", "hicache-size", "port", "config", "help"}
TYPED |= {"enable-hierarchical-cache"}
PREFILL_BACKENDS = ("full", "breakable", "tc_piecewise", "disabled")


def ask(sglang: Any, script: str, told: object = None) -> Any:
    done = subprocess.run(
        [sglang.python, "-c", script],
        env={**os.environ, **sglang.env},
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    answer = next((line for line in done.stdout.splitlines() if line.startswith("TOLD ")), None)
    assert answer is not None, done.stderr[-2000:]
    return json.loads(answer.removeprefix("TOLD "))


@pytest.fixture(scope="module")
def build(cpu_sglang: Any) -> SglangBuild:
    return detect_build(cpu_sglang.command, cpu_sglang.env, timeout_s=60)


@pytest.fixture(scope="module")
def options(cpu_sglang: Any) -> dict[str, dict[str, Any]]:
    told = ask(cpu_sglang, OPTIONS)
    return {name.removeprefix("--"): one for name, one in told.items() if name.startswith("--")}


def test_the_build_is_read_as_its_parser_is_made(build: SglangBuild, options: dict[str, dict[str, Any]]) -> None:
    del options["help"]
    assert build.known_flags is not None
    assert sorted(build.known_flags ^ options.keys()) == []
    assert {name: build.dest(name) for name in options} == {name: one["dest"] for name, one in options.items()}
    assert set(build.special) == {name for name, one in options.items() if not one["simple"]}


def test_what_is_in_the_yaml_and_beside_it_means_what_the_command_line_means(
    cpu_sglang: Any, build: SglangBuild, options: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    flags: dict[str, FlagValue] = {
        name: one["value"]
        for name, one in options.items()
        if name not in TYPED and not is_secret(name) and one["value"] is not None
    }
    assert len(flags) > 300
    each: list[dict[str, FlagValue]] = [{name: value} for name, value in flags.items()]
    each += [{"cuda-graph-backend-prefill": backend} for backend in PREFILL_BACKENDS]
    names = [name for name in flags if name not in build.special]
    each += [{name: flags[name] for name in names[start : start + 40]} for start in range(0, len(names), 40)]
    configs = [ServerConfig("/m/x", 0.8, "bfloat16", 20, one) for one in each]
    by_file = [as_file(config, build, tmp_path / f"{i}.yaml") for i, config in enumerate(configs)]
    by_line = [list(to_argv(config, build)) for config in configs]
    meanings = ask(cpu_sglang, PARSE, by_file + by_line)
    for given, from_file, from_line in zip(each, meanings, meanings[len(each) :], strict=False):
        assert from_file == from_line, given
        # A flag that was withdrawn is refused by its own action, wherever it stands.
        assert isinstance(from_line, dict) or given.keys() <= build.special.keys(), (given, from_line)


def test_few_flags_have_to_stand_beside_it(build: SglangBuild, options: dict[str, dict[str, Any]]) -> None:
    simple = {name: one["value"] for name, one in options.items() if one["simple"] and one["value"] is not None}
    each = [ServerConfig("/m/x", flags={name: value}) for name, value in simple.items() if name not in TYPED]
    beside = {words_beside_yaml(config, build) for config in each} - {()}
    assert beside == {("--incremental-streaming-output",), ("--enable-linear-replayssm-spec",)}


def as_file(config: ServerConfig, build: SglangBuild, path: Path) -> list[str]:
    path.write_text(to_yaml(config, build), encoding="utf-8")
    return ["--config", str(path), *words_beside_yaml(config, build)]
