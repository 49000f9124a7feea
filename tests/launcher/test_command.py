"""Launch commands: splitting, wrappers, and what has to be added behind them."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.command import Wrapper, compose, flag_value, is_simulated, split_command, unwrap
from launcher.errors import UsageError

ENV = {"KVTUNE_TOKEN": "t0", "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    ("command", "wrapper"),
    [
        ("python -m sglang.launch_server", Wrapper.NONE),
        ("numactl --cpunodebind 0 /opt/venv/bin/python -m sglang.launch_server", Wrapper.NONE),
        ("srun --gres gpu:8 python -m sglang.launch_server", Wrapper.NONE),
        ("docker run --rm --gpus all --network host image:v1 python3 -m sglang.launch_server", Wrapper.CONTAINER),
        ("sudo podman exec box sglang serve", Wrapper.CONTAINER),
        ("ssh -p 22 -i key me@localhost python -m sglang.launch_server", Wrapper.SSH),
        ("/home/me/docker-less/serve.sh", Wrapper.NONE),
    ],
)
def test_wrappers_that_need_care_are_found(command: str, wrapper: Wrapper) -> None:
    assert unwrap(split_command(command)).wrapper is wrapper


def test_a_plain_command_gets_its_words_appended() -> None:
    assert compose(("python", "-m", "x"), ("--port", "1"), ENV) == ("python", "-m", "x", "--port", "1")


def test_a_container_runner_is_told_the_names_and_not_the_values() -> None:
    words = compose(split_command("docker run --rm image python -m x"), ("--port", "1"), ENV)
    assert words[:6] == ("docker", "run", "-e", "KVTUNE_TOKEN", "-e", "HF_HUB_OFFLINE")
    assert words[6:8] == ("--label", "kvtune.token=t0")
    assert words[-2:] == ("--port", "1")
    assert "1" not in words[:6]


@given(st.lists(st.text(st.characters(codec="ascii", min_codepoint=32), min_size=1), min_size=1))
def test_words_survive_the_remote_shell_of_ssh(argv: list[str]) -> None:
    *outer, remote = compose(("ssh", "-p", "22", "localhost", "python", "-m", "x"), tuple(argv), ENV)
    assert outer == ["ssh", "-p", "22", "localhost"]
    assert remote.startswith("export KVTUNE_TOKEN=t0; export HF_HUB_OFFLINE=1; python -m x ")
    assert shlex.split(remote)[-len(argv) :] == argv


@pytest.mark.parametrize("command", ["", "python 'unfinished", []])
def test_a_command_that_is_none_is_refused(command: str) -> None:
    with pytest.raises(UsageError, match="command:"):
        split_command(command)


def test_flags_in_the_command_itself_are_read() -> None:
    words = split_command("python -m sglang.launch_server --api-key one --host=0.0.0.0 --api-key two")
    assert flag_value(words, "api-key") == "two"
    assert flag_value(words, "host") == "0.0.0.0"
    assert flag_value(words, "port") is None


def test_the_simulated_engine_is_known_by_its_module() -> None:
    assert is_simulated(split_command("python -m launcher.simulated --preset x"))
    assert not is_simulated(split_command("python -m sglang.launch_server"))
