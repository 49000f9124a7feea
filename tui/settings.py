"""What the user wants, gathered once: command line before environment before config file before defaults."""

from __future__ import annotations

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from urllib.parse import urlsplit

from tui.errors import SettingsError

INTERVAL_S = (0.2, 60.0)
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(%[A-Za-z0-9_.-]+)?")
"""A name, an IPv4 address, or an IPv6 address (which urlsplit gives without its brackets)."""
_ENDPOINT = re.compile(r"/(v1(/[a-z_/]+)?|metrics|health(_generate)?|generate|get_load|(get_)?(server|model)_info)$")
"""What people copy behind a base address."""
FILE_KEYS = ("url", "interval_s", "api_key_env", "ascii", "color", "gpu", "mouse", "window_s")
"""Keys of the config file (TOML)."""
FLAGS = ("ascii", "color", "gpu", "mouse")
"""Those that are true or false."""


@dataclass(frozen=True, slots=True)
class Settings:
    urls: tuple[str, ...] = ()
    """Empty: find the servers of this machine."""
    interval_s: float = 1.0
    window_s: float = 0.0
    """How long --once and --diagnose watch before they answer; rates need more than 0."""
    api_key: str | None = None
    ascii: bool = False
    color: bool = True
    gpu: bool = True
    mouse: bool = True
    """False leaves the mouse to the terminal, which can then select text."""
    gpu_source: str | None = None
    """None: the driver. "simulated:DIR": the simulated engine's GPUs."""
    study: Path | None = None

    def shown(self) -> str:
        """The effective settings, one a line; the API key is never shown."""
        pairs = [(item.name, getattr(self, item.name)) for item in fields(self)]
        told = [(name, "(set)" if name == "api_key" and value else value) for name, value in pairs]
        return "\n".join(f"{name} = {value!r}" for name, value in told) + "\n"


def gather(args: argparse.Namespace, env: Mapping[str, str]) -> Settings:
    """Settings from every place; SettingsError names the place, the key and the value."""
    settings = _from_file(Settings(), args.config, env)
    settings = _from_env(settings, env)
    return _from_args(settings, args)


def default_file(env: Mapping[str, str]) -> Path:
    home = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME", "~"), ".config")
    return Path(home).expanduser() / "kvtune" / "kvtop.toml"


def _from_file(settings: Settings, named: Path | None, env: Mapping[str, str]) -> Settings:
    path = named or default_file(env)
    if named is None and not path.is_file():
        return settings
    values = _read_toml(path)
    for key in values:
        if key not in FILE_KEYS:
            near = difflib.get_close_matches(key, FILE_KEYS, 1)
            hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(FILE_KEYS)}"
            raise SettingsError(f"{path}: {key}: unknown key; {hint}")
    return _apply_file(settings, path, values, env)


def _read_toml(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error


def _apply_file(settings: Settings, path: Path, values: Mapping[str, object], env: Mapping[str, str]) -> Settings:
    if "url" in values:
        urls = values["url"]
        listed = [urls] if isinstance(urls, str) else urls
        if not isinstance(listed, list):
            raise SettingsError(f"{path}: url: {urls!r} should be a URL or a list of URLs")
        settings = replace(settings, urls=tuple(checked_url(str(url), f"{path}: url") for url in listed))
    times = {
        key: checked_seconds(values[key], f"{path}: {key}", key) for key in ("interval_s", "window_s") if key in values
    }
    settings = replace(
        settings,
        interval_s=times.get("interval_s", settings.interval_s),
        window_s=times.get("window_s", settings.window_s),
    )
    flags = {key: _checked_bool(values[key], f"{path}: {key}") for key in FLAGS if key in values}
    settings = replace(
        settings,
        ascii=flags.get("ascii", settings.ascii),
        color=flags.get("color", settings.color),
        gpu=flags.get("gpu", settings.gpu),
        mouse=flags.get("mouse", settings.mouse),
    )
    if "api_key_env" in values:
        settings = replace(settings, api_key=env.get(str(values["api_key_env"])))
    return settings


def _from_env(settings: Settings, env: Mapping[str, str]) -> Settings:
    if env.get("KVTOP_URL"):
        urls = env["KVTOP_URL"].replace(",", " ").split()
        settings = replace(settings, urls=tuple(checked_url(url, "KVTOP_URL") for url in urls))
    if env.get("KVTOP_API_KEY"):
        settings = replace(settings, api_key=env["KVTOP_API_KEY"])
    if env.get("NO_COLOR"):
        settings = replace(settings, color=False)
    return settings


def _from_args(settings: Settings, args: argparse.Namespace) -> Settings:
    if args.url:
        settings = replace(settings, urls=tuple(checked_url(url, "--url") for url in args.url))
    if args.interval is not None:
        settings = replace(settings, interval_s=checked_seconds(args.interval, "--interval", "interval_s"))
    if args.window is not None:
        settings = replace(settings, window_s=checked_seconds(args.window, "--window", "window_s"))
    if args.api_key:
        settings = replace(settings, api_key=args.api_key)
    return replace(
        settings,
        ascii=settings.ascii or args.ascii,
        color=settings.color and not args.no_color,
        gpu=settings.gpu and not args.no_gpu,
        mouse=settings.mouse and not args.no_mouse,
        gpu_source=_checked_gpus(args.gpus),
        study=args.study,
    )


def checked_url(text: str, place: str) -> str:
    """`host:port`, `http://host:port/` and `http://host:port/metrics` alike become `http://host:port`."""
    url = text.strip()
    url = _ENDPOINT.sub("", (url if "://" in url else f"http://{url}").rstrip("/"))
    wrong = _wrong_with(url)
    if wrong:
        raise SettingsError(f"{place}: {text!r} {wrong}; write http://HOST:PORT (SGLang's default port is 30000)")
    return url


def _wrong_with(url: str) -> str | None:
    """What keeps a URL from being a server's base address."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"is no address ({error})"
    if parts.scheme not in ("http", "https"):
        return "is neither http nor https"
    if not parts.hostname:
        return "names no host"
    if parts.username is not None or parts.query or parts.fragment or not _HOST.fullmatch(parts.hostname):
        return "is not a server's base address"
    if port == 0 or (port is None and (parts.scheme == "http" or parts.netloc.endswith(":"))):
        return "names no port"
    return None


def checked_seconds(value: object, place: str, key: str) -> float:
    low, high = INTERVAL_S if key == "interval_s" else (0.0, 3600.0)
    try:
        seconds = float(str(value))
    except ValueError:
        raise SettingsError(f"{place}: {value!r} is not a number of seconds") from None
    if not low <= seconds <= high:
        raise SettingsError(f"{place}: {value} s is out of range; between {low:g} and {high:g} s")
    return seconds


def _checked_gpus(source: str | None) -> str | None:
    if source is None or source == "nvml":
        return source
    kind, _, directory = source.partition(":")
    if kind == "simulated" and Path(directory).is_dir():
        return source
    if kind == "simulated":
        raise SettingsError(f"--gpus: {source!r}: there is no such directory; it is the server's own --gpu-state")
    raise SettingsError(f"--gpus: {source!r} is no source of GPUs; it is nvml or simulated:DIR")


def _checked_bool(value: object, place: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{place}: {value!r} should be true or false")
    return value
