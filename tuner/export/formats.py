"""The answer in the forms in which people start servers. Secrets are never among them."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

import yaml

from launcher.flags import to_argv
from launcher.redact import is_secret
from tuner.errors import StudyFileError
from tuner.export.best import Answer, best_config, header

IMAGE = "lmsysorg/sglang"
PORT = 30000


def render(answer: Answer, form: str) -> str:
    """The answer in one of FORMATS. Raises StudyFileError for another."""
    if form not in FORMATS:
        raise StudyFileError(f"format {form!r}: must be one of {', '.join(FORMATS)}")
    if answer.study.simulated and FORMATS[form] in _IN_SGLANGS_IMAGE:
        raise StudyFileError(
            f"format {form!r}: study {answer.view.study_id} is simulated, and SGLang's image holds no simulated engine;"
            " take sglang, command or systemd"
        )
    return FORMATS[form](answer)


def _comments(answer: Answer) -> str:
    return "".join(f"# {line}\n" for line in header(answer))


def _argv(answer: Answer) -> list[str]:
    """The launch command with every flag; the study's own command, not a container's."""
    return [*answer.view.environment.command, *to_argv(answer.config, answer.build)]


def _environment(answer: Answer) -> tuple[dict[str, str], list[str]]:
    """The variables to set, and the names of those that hold secrets and must be given where it runs."""
    env = answer.study.env
    return (
        {name: value for name, value in env.items() if not is_secret(name)},
        [name for name in env if is_secret(name)],
    )


def _command(answer: Answer) -> str:
    """A shell command, one flag a line."""
    env, secrets = _environment(answer)
    assigned = [f"{name}={shlex.quote(value)}" for name, value in env.items()]
    given = [f"# set {name} yourself: its value is a secret and is not exported\n" for name in secrets]
    words = " \\\n    ".join([" ".join([*assigned, shlex.join(answer.view.environment.command)]), *_pairs(answer)])
    return _comments(answer) + "".join(given) + words + "\n"


def _pairs(answer: Answer) -> list[str]:
    """Flags with their values, quoted, in one string each."""
    pairs: list[str] = []
    for word in to_argv(answer.config, answer.build):
        if word.startswith("--") or not pairs:
            pairs.append(shlex.quote(word))
        else:
            pairs[-1] += f" {shlex.quote(word)}"
    return pairs


def _image(answer: Answer) -> str:
    version = answer.view.sglang_version
    return f"{IMAGE}:v{version}" if version else f"{IMAGE}:latest"


def _serving(answer: Answer) -> list[str]:
    """Inside SGLang's image, reachable from outside the container."""
    flags = to_argv(answer.config, answer.build)
    return ["python3", "-m", "sglang.launch_server", "--host", "0.0.0.0", "--port", str(PORT), *flags]


def _compose(answer: Answer) -> str:
    env, secrets = _environment(answer)
    service: dict[str, object] = {
        "image": _image(answer),
        "command": _serving(answer),
        # A bare name takes its value from the shell or from an .env file.
        "environment": [*(f"{name}={value}" for name, value in env.items()), *secrets],
        "ports": [f"{PORT}:{PORT}"],
        "ipc": "host",
    }
    if _local_model(answer):
        service["volumes"] = [f"{_local_model(answer)}:{_local_model(answer)}:ro"]
    if _gpu_count(answer):
        service["deploy"] = {"resources": {"reservations": {"devices": [_devices(answer)]}}}
    return _comments(answer) + _yaml({"services": {"sglang": service}})


def _devices(answer: Answer) -> dict[str, object]:
    return {"driver": "nvidia", "count": _gpu_count(answer), "capabilities": ["gpu"]}


def _gpu_count(answer: Answer) -> int:
    """0 for a server that was measured without GPUs."""
    return len(answer.view.environment.gpu_names) and answer.config.rank_count


def _local_model(answer: Answer) -> str | None:
    """The model's path where it is one: a container must be given it."""
    path = answer.config.model_path
    return path if path.startswith("/") else None


def _k8s(answer: Answer) -> str:
    env, secrets = _environment(answer)
    variables: list[dict[str, object]] = [{"name": name, "value": value} for name, value in env.items()]
    for name in secrets:
        reference = {"name": "sglang", "key": name}
        variables.append({"name": name, "valueFrom": {"secretKeyRef": reference}})
    container = {
        "name": "sglang",
        "image": _image(answer),
        "command": _serving(answer),
        "env": variables,
        "ports": [{"containerPort": PORT}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 10},
        "resources": {"limits": {"nvidia.com/gpu": _gpu_count(answer)}},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *_model_mounts(answer)],
    }
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}, *_model_volumes(answer)]
    pod = {"metadata": {"labels": _labels()}, "spec": {"containers": [container], "volumes": volumes}}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "sglang", "labels": _labels()},
        "spec": {"replicas": 1, "selector": {"matchLabels": _labels()}, "template": pod},
    }
    return _comments(answer) + _yaml(deployment)


def _labels() -> dict[str, str]:
    """Made anew each time, because YAML writes what is the same object as a reference."""
    return {"app": "sglang"}


def _model_mounts(answer: Answer) -> list[dict[str, object]]:
    path = _local_model(answer)
    return [{"name": "model", "mountPath": path, "readOnly": True}] if path else []


def _model_volumes(answer: Answer) -> list[dict[str, object]]:
    path = _local_model(answer)
    return [{"name": "model", "hostPath": {"path": path, "type": "Directory"}}] if path else []


def _systemd(answer: Answer) -> str:
    env, secrets = _environment(answer)
    lines = [
        "[Unit]",
        "Description=SGLang with the flags that kvtune found",
        "After=network-online.target",
        "",
    ]
    lines += ["[Service]"]
    lines += [f'Environment="{name}={_escaped(value)}"' for name, value in env.items()]
    lines += [f"# {name} is a secret: put it into this file" for name in secrets]
    lines += ["EnvironmentFile=-/etc/sglang.env"] if secrets else []
    lines += ["ExecStart=" + " ".join(_unit_word(word) for word in _argv(answer))]
    lines += ["Restart=on-failure", "TimeoutStopSec=90", "LimitMEMLOCK=infinity", ""]
    lines += ["[Install]", "WantedBy=multi-user.target", ""]
    return _comments(answer) + "\n".join(lines)


def _unit_word(word: str) -> str:
    """A word of ExecStart: systemd expands % and $ itself, and quotes with double quotes."""
    escaped = _escaped(word).replace("$", "$$")
    return f'"{escaped}"' if any(mark in word for mark in " \t\"'\\;") or not word else escaped


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _yaml(value: object) -> str:
    return yaml.safe_dump(value, sort_keys=False, allow_unicode=True)


_IN_SGLANGS_IMAGE = (_compose, _k8s)
FORMATS: Mapping[str, Callable[[Answer], str]] = {
    "sglang": best_config,
    "command": _command,
    "compose": _compose,
    "k8s": _k8s,
    "systemd": _systemd,
}
