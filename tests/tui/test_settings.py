from collections.abc import Mapping
from pathlib import Path

import pytest

from tui.cli import parser
from tui.errors import SettingsError
from tui.settings import Settings, checked_url, gather


def settings(*argv: str, env: Mapping[str, str] | None = None) -> Settings:
    return gather(parser().parse_args(list(argv)), env if env is not None else {"HOME": "/nonexistent"})


def test_the_command_line_wins_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "kvtop.toml"
    file.write_text('url = ["a:1", "b:2"]\ninterval_s = 3\nascii = true\n')
    env = {"HOME": "/nonexistent", "KVTOP_URL": "c:3"}
    assert settings("--config", str(file), env={"HOME": "/"}).urls == ("http://a:1", "http://b:2")
    assert settings("--config", str(file), env=env).urls == ("http://c:3",)
    told = settings("--config", str(file), "-u", "d:4", "-u", "e:5", "-i", "0.5", env=env)
    assert told.urls == ("http://d:4", "http://e:5")
    assert told.interval_s == 0.5
    assert told.ascii


def test_the_default_file_is_read_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "kvtune").mkdir()
    (tmp_path / "kvtune" / "kvtop.toml").write_text("interval_s = 7\n")
    assert settings(env={"XDG_CONFIG_HOME": str(tmp_path)}).interval_s == 7.0
    assert settings(env={"XDG_CONFIG_HOME": str(tmp_path / "none")}).interval_s == 1.0


def test_no_color_from_anywhere() -> None:
    assert settings().color
    assert not settings("--no-color").color
    assert not settings(env={"NO_COLOR": "1", "HOME": "/"}).color
    assert settings(env={"NO_COLOR": "", "HOME": "/"}).color


def test_the_api_key_is_taken_but_never_shown(tmp_path: Path) -> None:
    file = tmp_path / "kvtop.toml"
    file.write_text('api_key_env = "MY_KEY"\n')
    told = settings("--config", str(file), env={"MY_KEY": "sk-secret", "HOME": "/"})
    assert told.api_key == "sk-secret"
    assert "sk-secret" not in told.shown()
    assert settings("--api-key", "sk-flag", env={"KVTOP_API_KEY": "sk-env", "HOME": "/"}).api_key == "sk-flag"


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("localhost:30000", "http://localhost:30000"),
        (" http://10.0.0.7:8000/ ", "http://10.0.0.7:8000"),
        ("https://sglang.example.org", "https://sglang.example.org"),
        ("[::1]:30000", "http://[::1]:30000"),
    ],
)
def test_urls_as_people_write_them(text: str, url: str) -> None:
    assert checked_url(text, "--url") == url


@pytest.mark.parametrize(
    "end", ["", "/", "/metrics", "/v1", "/v1/", "/v1/chat/completions", "/get_server_info", "/health"]
)
def test_an_endpoint_behind_the_address_is_taken_off(end: str) -> None:
    assert checked_url(f"http://box:30302{end}", "--url") == "http://box:30302"
    assert checked_url(f"https://gateway/model-v1{end}", "--url") == "https://gateway/model-v1"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "http://host",
            "ftp://host:1",
            "http://:5",
            "http://h:notaport",
            "",
            "http://",
            "http:///",
            "h:",
            "http:/h:1",
        ),
        *("http://h:0", "http://h:99999", "http://a b:1", "http://[::1", "::1:30000", "http://u:p@h:1", "://h:1"),
        *("http://h:1?x=1", "http://h:1#x", "http://http://h:1", "http://h\x00:1", "http://-:1", "http://h;:1"),
    ],
)
def test_urls_that_cannot_be_meant(text: str) -> None:
    with pytest.raises(SettingsError, match="--url: "):
        checked_url(text, "--url")


@pytest.mark.parametrize("value", ["SEC", "0", "-1", "1e9", "nan"])
def test_an_interval_that_cannot_be_meant(value: str) -> None:
    with pytest.raises(SettingsError, match="--interval: "):
        settings(f"--interval={value}")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("intervall_s = 1", "intervall_s: unknown key; did you mean interval_s"),
        ("interval_s = 'fast'", "interval_s: 'fast' is not a number of seconds"),
        ("ascii = 1", "ascii: 1 should be true or false"),
        ("url = 5", "url: 5 should be a URL"),
        ("url = ", "not valid TOML"),
    ],
)
def test_the_config_file_is_refused_in_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    file = tmp_path / "kvtop.toml"
    file.write_text(content)
    with pytest.raises(SettingsError) as caught:
        settings("--config", str(file))
    assert str(file) in str(caught.value)
    assert sentence in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_config_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        settings("--config", str(tmp_path / "none.toml"))


def test_the_mouse_can_be_left_to_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "kvtop.toml"
    file.write_text("mouse = false\n")
    assert settings().mouse
    assert not settings("--no-mouse").mouse
    assert not settings("--config", str(file)).mouse
