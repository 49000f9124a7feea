"""What SGLang's `--config` refuses in YAML, and must therefore be given on the command line beside the file."""

from __future__ import annotations

import shlex

from launcher.flags import words_beside_yaml
from launcher.version import SglangBuild
from tuner.study_file import Study


def note(words: tuple[str, ...], build: SglangBuild) -> list[str]:
    """Two lines above the flags of best-config.yaml, the second to be copied; none where the file is complete."""
    if not words:
        return []
    return [
        f"NOT IN THIS FILE, because SGLang {build.version} refuses it in YAML; give it beside --config:",
        f"    {shlex.join(words)}",
    ]


def warning(study: Study, build: SglangBuild) -> str | None:
    """The sentence with which a study begins whose answer will not fit into the file alone; None where it will.

    Raises UsageError for a flag that the build has not.
    """
    configs = (study.server_config(setting) for setting in study.space.build().families())
    words = {word for config in configs for word in words_beside_yaml(config, build)}
    flags = sorted({word.partition("=")[0] for word in words if word.startswith("--")})
    if not flags:
        return None
    return (
        f"SGLang {build.version} refuses {', '.join(flags)} in YAML: the best-config will name what to give"
        " on the command line beside --config, and `export --format command` holds everything"
    )
