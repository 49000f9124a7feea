"""The simulated server's command line: SGLang's flags (server_args.json: 0.5.17) and a few of its own."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from launcher.config import FlagValue, ServerConfig
from launcher.errors import UsageError
from launcher.simulated import faults
from launcher.simulated.boot import version_tuple
from launcher.yaml_file import yaml_fault

_DEFAULTS: dict[str, Any] = json.loads(Path(__file__).with_name("server_args.json").read_text(encoding="utf-8"))
_ALIASES = {"tp_size": ("--tensor-parallel-size", "--tp"), "model_path": ("--model",), "dp_size": ("--dp",)}
_ONLY_BEFORE_0_5_20 = ("--cuda-graph-max-bs", "--cuda-graph-bs", "--disable-piecewise-cuda-graph")
_CHOICES = {
    "kv_cache_dtype": ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16"),
    "hicache_write_policy": ("write_back", "write_through", "write_through_selective"),
    "load_format": ("auto", "safetensors", "dummy"),
}
_NUMBERS = {
    "mem_fraction_static": float,
    "max_running_requests": int,
    "max_queued_requests": int,
    "max_total_tokens": int,
    "chunked_prefill_size": int,
    "page_size": int,
    "context_length": int,
    "random_seed": int,
    "cuda_graph_max_bs_decode": int,
}
_NOT_CONFIG = (
    "model_path",
    "mem_fraction_static",
    "kv_cache_dtype",
    "hicache_size",
    "host",
    "port",
    "api_key",
)
VERSIONS = ("0.5.17", "0.5.23")


@dataclass(frozen=True, slots=True)
class Arguments:
    """One start of the process."""

    preset: str
    speed: float
    gpu_state: Path | None
    version: str
    faults: tuple[str, ...]
    seed: int
    config: ServerConfig
    host: str
    port: int
    api_key: str | None
    admin_api_key: str | None
    enable_metrics: bool
    served_model_name: str
    server_args: dict[str, Any]
    """Every SGLang argument as /server_info shows it."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        usage = f"usage: {self.prog} (simulated) [-h] --model-path MODEL_PATH ..."
        self.exit(2, f"{usage}\n{self.prog}: error: {message}\n")


def build_parser(version: str) -> argparse.ArgumentParser:
    """The parser of one version: 0.5.23 no longer knows the older graph flags."""
    parser = _Parser(
        prog="launch_server.py",
        description="A simulated SGLang server: no GPU, every number computed.",
        epilog=faults.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own = parser.add_argument_group("simulation")
    own.add_argument("--preset", required=True, help="name of a preset, or a YAML file")
    own.add_argument("--speed", type=float, default=1.0, help="simulated seconds per wall second")
    own.add_argument("--gpu-state", type=Path, help="directory in which simulated GPU memory is held")
    own.add_argument("--sglang-version", choices=VERSIONS, default=version, help="whose wording and rules")
    own.add_argument("--fault", action="append", default=[], metavar="NAME[:VALUE]", help="what goes wrong; see below")
    own.add_argument("--version", action="version", version=f"sglang {version} (simulated by kvtune)")
    sglang = parser.add_argument_group("SGLang")
    sglang.add_argument("--config", help="YAML file of further flags")
    for name, default in _DEFAULTS.items():
        _add(sglang, name, default)
    if version_tuple(version) < (0, 5, 20):
        sglang.add_argument("--cuda-graph-max-bs", type=int, help="deprecated")
        sglang.add_argument("--cuda-graph-bs", type=int, nargs="+", help="deprecated")
        sglang.add_argument("--disable-piecewise-cuda-graph", action="store_true", help="deprecated")
    else:
        sglang.add_argument("--enable-hicache", dest="enable_hierarchical_cache", action="store_true")
    return parser


def _add(group: argparse._ArgumentGroup, name: str, default: Any) -> None:
    flags = ("--" + name.replace("_", "-"), *_ALIASES.get(name, ()))
    if default is False:
        group.add_argument(*flags, dest=name, action="store_true")
    elif isinstance(default, list):
        group.add_argument(*flags, dest=name, nargs="+", default=default)
    else:
        kind = _NUMBERS.get(name) or (type(default) if isinstance(default, int | float) else str)
        required = name == "model_path"
        group.add_argument(*flags, dest=name, type=kind, default=default, choices=_CHOICES.get(name), required=required)


def parse_arguments(argv: list[str]) -> Arguments:
    """Exits with 2 as argparse does, and raises UsageError for a YAML file that SGLang would refuse."""
    version = _peek_version(argv)
    options = vars(build_parser(version).parse_args(with_config_file(argv)))
    if not options["speed"] > 0:
        raise UsageError(f"argument --speed: must be above 0, got {options['speed']!r}")
    server_args = {name: options[name] for name in _DEFAULTS}
    return Arguments(
        preset=options["preset"],
        speed=options["speed"],
        gpu_state=options["gpu_state"],
        version=options["sglang_version"],
        faults=tuple(options["fault"]),
        seed=options["random_seed"] or 0,
        config=_config(options),
        host=options["host"],
        port=options["port"],
        api_key=options["api_key"],
        admin_api_key=options["admin_api_key"],
        enable_metrics=options["enable_metrics"],
        served_model_name=options["served_model_name"] or options["model_path"],
        server_args=server_args,
    )


def _peek_version(argv: list[str]) -> str:
    for place, word in enumerate(argv[:-1]):
        if word == "--sglang-version" and argv[place + 1] in VERSIONS:
            return argv[place + 1]
    return VERSIONS[0]


def _config(options: dict[str, Any]) -> ServerConfig:
    flags: dict[str, FlagValue] = {}
    for name, value in options.items():
        known = name in _DEFAULTS or name in (
            "cuda_graph_max_bs",
            "cuda_graph_bs",
            "disable_piecewise_cuda_graph",
        )
        if known and name not in _NOT_CONFIG and value is not None and value != _DEFAULTS.get(name):
            flags[name.replace("_", "-")] = value
    size = options["hicache_size"] if options["enable_hierarchical_cache"] else 0
    return ServerConfig(options["model_path"], options["mem_fraction_static"], options["kv_cache_dtype"], size, flags)


def with_config_file(argv: list[str]) -> list[str]:
    """Flags of `--config FILE`, put before the command line's so that those win (ConfigArgumentMerger)."""
    if "--config" not in argv[:-1]:
        return argv
    place = argv.index("--config")
    path = Path(argv[place + 1])
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--config {path}: the file must end in .yaml or .yml")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: cannot be read ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise UsageError(f"--config {path}: is not YAML; {yaml_fault(error)}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"--config {path}: must be a flat mapping of flags with dashes")
    words: list[str] = []
    for key, value in raw.items():
        words += _words(str(key), value)
    return [*words, *argv[:place], *argv[place + 2 :]]


def _words(key: str, value: object) -> list[str]:
    if "_" in key:
        raise UsageError(f"argument {key!r} of the --config file: SGLang wants dashes ({key.replace('_', '-')!r})")
    if value is True:
        return [f"--{key}"]
    if value is False:
        return []
    if isinstance(value, list):
        return [f"--{key}", *map(str, value)] if value else []
    return [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
