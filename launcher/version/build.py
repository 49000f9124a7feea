"""What is known of one SGLang build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SglangBuild:
    """A version and, where the build could be asked, its flags (names with dashes, without the leading
    `--`)."""

    version: str
    known_flags: frozenset[str] | None = None
    """Every flag it parses; None where only the version could be learned."""
    simulated: bool = False
    switches: frozenset[str] = frozenset()
    """Those of `known_flags` that take no value."""
    special: Mapping[str, str] = field(default_factory=dict)
    """Those with an action of their own (deprecated ones, `--x/--no-x` pairs), each with the help text that
    SGLang gives it. `--config` YAML refuses them, and whatever shares a dest with one: launcher.config_file."""
    aliases: frozenset[str] = frozenset()
    """Those of `special` that take a value and store it as it is: deprecated names of other flags."""
    dests: Mapping[str, str] = field(default_factory=dict)
    """Where argparse stores a flag, for those that are not stored under their own name."""

    def at_least(self, *release: int) -> bool:
        """Whether this is release 0.5.14 or newer: `build.at_least(0, 5, 14)`."""
        return version_tuple(self.version) >= release

    def dest(self, name: str) -> str:
        """Where argparse stores the flag: the `dest` of its action."""
        return self.dests.get(name, name.replace("-", "_"))


def version_tuple(version: str) -> tuple[int, ...]:
    """The release numbers of a version: "0.5.18.post1+cu129" and "v0.5.18" are both (0, 5, 18)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
