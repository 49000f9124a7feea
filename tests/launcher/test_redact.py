"""No secret survives redaction, in any form in which SGLang, a shell or an environment writes it."""

from __future__ import annotations

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from launcher.redact import REDACTED, is_secret, redact, redact_argv

# A real key's alphabet, and long enough that it cannot stand in the surrounding words by chance.
plain_secrets = st.text("ABCDEFGHJKLMNPQRSTUVWXYZ0123456789-_", min_size=8, max_size=40).map(lambda s: f"Zq{s}")
any_secrets = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), min_size=6).map(
    lambda s: f"Zq{s}Zq"
)
names = st.sampled_from(["api_key", "admin_api_key", "hf_token", "ssl_keyfile_password", "openai_api_key"])

TEXT_FORMS = (
    "server_args=ServerArgs(model_path='/m', {name}={quoted}, port=1)",
    "server_args={{'model_path': '/m', '{name}': {quoted}, 'port': 1}}",
    "'launch_command': ['python', '--{dashed}', {quoted}, '--port', '1']",
)
PLAIN_FORMS = (
    "python -m sglang.launch_server --{dashed} {secret} --port 1",
    "python -m sglang.launch_server --{dashed}={secret} --port 1",
    "export {upper}={secret}; python -m x",
    "{dashed}: {secret}\nport: 1",
    "curl -H 'Authorization: Bearer {secret}' http://127.0.0.1",
    '{{"{name}": "{secret}", "port": 1}}',
    "https://user:{secret}@hub.example/model",
)


@given(plain_secrets, names, st.sampled_from(PLAIN_FORMS + TEXT_FORMS))
def test_text_loses_the_secret_and_keeps_the_rest(secret: str, name: str, form: str) -> None:
    dashed = name.replace("_", "-")
    text = form.format(secret=secret, quoted=repr(secret), name=name, dashed=dashed, upper=name.upper())
    clean = redact(text)
    assert secret not in clean
    assert REDACTED in clean
    assert ("1" in clean) == ("1" in text.replace(secret, ""))


@given(any_secrets, names, st.sampled_from(TEXT_FORMS))
def test_quoted_text_loses_any_secret_whatever_its_characters(secret: str, name: str, form: str) -> None:
    text = form.format(quoted=repr(secret), name=name, dashed=name.replace("_", "-"))
    clean = redact(text)
    assert repr(secret)[1:-1] not in clean
    assert "Zq" not in clean


@given(any_secrets, names)
def test_argv_loses_any_secret(secret: str, name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    for words in ((flag, secret), (f"{flag}={secret}",), ("env", f"{name.upper()}={secret}")):
        assert all(secret not in word for word in redact_argv(("python", *words, "--port", "1")))


@given(any_secrets, names)
def test_mappings_lose_any_secret_however_deep(secret: str, name: str) -> None:
    told = {"port": 1, "states": [{"args": {name: secret}}], name: secret, "launch_command": [f"--{name}", secret]}
    assert secret not in repr(redact(told)).replace(REDACTED, "")


@given(st.text(max_size=300))
def test_redaction_is_stable(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@given(plain_secrets)
def test_a_redacted_document_is_still_a_document(secret: str) -> None:
    told = {"api_key": secret, "port": 1}
    assert json.loads(redact(json.dumps(told)))["port"] == 1
    assert yaml.safe_load(redact(yaml.safe_dump({"port": 1, "hf-token": secret})))["port"] == 1


@pytest.mark.parametrize(
    "name", ["api-key", "--admin-api-key", "HF_TOKEN", "Authorization", "token", "WANDB_API_KEY", "password"]
)
def test_secret_names(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    [
        "max-total-tokens",
        "eos_token",
        "tokenizer-path",
        "token_usage",
        "stop_token_ids",
        "monkey",
        "key",
        "bucket-time-to-first-token",
    ],
)
def test_names_of_counts_and_vocabulary_are_not_secret(name: str) -> None:
    assert not is_secret(name)


def test_what_is_no_secret_stays() -> None:
    line = "Decode batch, #token: 120, token usage: 0.01, max_total_num_tokens=4096, api_key=None, eos_token='</s>'"
    assert redact(line) == line
    assert redact({"api_key": None, "max_total_tokens": 5}) == {"api_key": None, "max_total_tokens": 5}
