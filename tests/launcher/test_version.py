"""Which SGLang would start: asked of interpreters that have a stand-in package, behind wrappers and scripts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.version import SglangBuild, detect_build, version_tuple

SERVER_ARGS = """
class ServerArgs:
    model_path: A[str, Arg(help="Path.", aliases=["--model"])]
    port: A[int, "The port."] = 30000
    tp_size: A[int, Arg(help="Ranks.", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    enable_metrics: A[bool, "Log metrics.", NS("observability")] = False
    internal: A[bool, Arg(no_cli=True)] = False
    handler: A[Optional[Callable], NS("device")] = None
    multimodal: A[Optional[bool], "Images."] = None
    drafting: A[bool | None, "Drafts."] = None
    mem_fraction_static: A[Optional[float], "Fraction."] = None
    strict: A[bool, Arg(help="Strict.", action=argparse.BooleanOptionalAction)] = False

    def add_cli_args(parser):
        parser.add_argument("--log-requests", action="store_true", help="Log.")
        parser.add_argument("--old", action=DeprecatedStoreTrueAction, help="[Deprecated] " "Use --new.")
        parser.add_argument("--ranks", action=DeprecatedAliasStoreAction, dest="tp_size", help="Use --tp-size.")
        parser.add_argument("--kv-cache-dtype", type=str, choices=["auto", "bfloat16"])
"""


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """An environment in which a package called sglang is installed: sources that must be read and never imported."""
    package = tmp_path / "site" / "sglang"
    (package / "srt").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "launch_server.py").write_text("raise SystemExit('started')")
    (package / "srt" / "server_args.py").write_text(SERVER_ARGS)
    metadata = tmp_path / "site" / "sglang-0.5.17.post1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.17.post1\n")
    return {"PYTHONPATH": str(tmp_path / "site")}


def check(build: SglangBuild) -> None:
    assert build.version == "0.5.17.post1"
    assert build.known_flags is not None
    assert {"model-path", "model", "tensor-parallel-size", "tp-size", "kv-cache-dtype"} <= build.known_flags
    assert {"no-strict", "strict", "old", "ranks"} == set(build.special)
    assert build.aliases == {"ranks"}
    assert {build.dest(name) for name in ("tensor-parallel-size", "tp-size", "ranks")} == {"tp_size"}
    assert (build.dest("model"), build.dest("no-strict"), build.dest("old")) == ("model_path", "strict", "old")
    assert build.switches == {"enable-metrics", "log-requests", "multimodal", "drafting"}
    assert not {"internal", "handler"} & build.known_flags
    assert build.special["old"] == "[Deprecated] Use --new."


def test_the_interpreter_in_the_words_is_asked(installed: dict[str, str]) -> None:
    check(detect_build((sys.executable, "-m", "sglang.launch_server"), installed, timeout_s=20))


def test_a_wrapper_is_asked_through(installed: dict[str, str]) -> None:
    check(detect_build(("nice", "-n", "1", sys.executable, "-m", "sglang.launch_server"), installed, timeout_s=20))


def test_a_script_is_asked_in_the_python_that_would_serve(installed: dict[str, str], tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(
        f"#!/bin/sh\n{sys.executable} -c 'print(1)'\nexec {sys.executable} -m sglang.launch_server --tp-size 8 \"$@\"\n"
    )
    script.chmod(0o755)
    check(detect_build((str(script),), installed, timeout_s=20))


def test_a_console_script_is_asked_in_its_own_interpreter(installed: dict[str, str], tmp_path: Path) -> None:
    entry = tmp_path / "sglang"
    entry.write_text(f"#!{sys.executable}\nimport sglang\n")
    entry.chmod(0o755)
    check(detect_build((str(entry), "serve"), installed, timeout_s=20))


def test_the_answer_is_kept(installed: dict[str, str], tmp_path: Path) -> None:
    command = (sys.executable, "-m", "sglang.launch_server")
    first = detect_build(command, installed, timeout_s=20)
    (tmp_path / "site" / "sglang-0.5.17.post1.dist-info" / "METADATA").unlink()
    assert detect_build(command, installed, timeout_s=20) is first


def test_an_interpreter_without_sglang_is_named() -> None:
    with pytest.raises(UsageError, match="its Python has no SGLang"):
        detect_build((sys.executable, "-m", "sglang.launch_server"), {"A": "without"}, timeout_s=20)


def test_a_command_that_tells_nothing_needs_the_users_word() -> None:
    with pytest.raises(UsageError, match=r"does not tell which SGLang .*`sglang_version`"):
        detect_build(("echo", "hello"), {}, timeout_s=20)
    assert detect_build(("echo",), {}, timeout_s=20, declared_version="0.5.9") == SglangBuild("0.5.9")


def test_a_command_that_hangs_is_ended_at_the_limit() -> None:
    with pytest.raises(UsageError, match=r"did not tell its version in 0\.2 s"):
        detect_build(("sleep", "60"), {}, timeout_s=0.2)


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(UsageError, match="no program 'no-such-python'"):
        detect_build(("no-such-python", "-m", "sglang.launch_server"), {}, timeout_s=20)


def test_a_container_that_hides_its_interpreter_needs_the_users_word(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text("#!/bin/sh\n")
    docker.chmod(0o755)
    with pytest.raises(UsageError, match="hides its interpreter"):
        detect_build((str(docker), "run", "image"), {}, timeout_s=20)


@pytest.mark.parametrize(
    ("text", "release"), [("0.5.18", (0, 5, 18)), ("v0.5.9.post2", (0, 5, 9)), ("0.5.23+cu129", (0, 5, 23)), ("x", ())]
)
def test_release_numbers(text: str, release: tuple[int, ...]) -> None:
    assert version_tuple(text) == release
    assert SglangBuild("0.5.18.post1").at_least(0, 5, 18)
    assert not SglangBuild("0.5.9").at_least(0, 5, 14)
