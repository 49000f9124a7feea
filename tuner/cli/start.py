"""Beginning a study, going on with one, and leaving one to run in the background."""

from __future__ import annotations

import asyncio
import re
import secrets
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from launcher import exits
from launcher.command import check_executable
from launcher.config import TENSOR_PARALLEL
from launcher.errors import MachineError
from launcher.ports import is_free
from tuner.budget import words
from tuner.errors import StudyFileError, StudyLocked
from tuner.export import warning
from tuner.export.atomic import check_writable, write_whole
from tuner.journal import Journal, find_study, new_study_directory, read_study
from tuner.journal.home import LOCK, is_running
from tuner.journal.lock import read_holder
from tuner.progress.words import doubt_words
from tuner.study_file import PORT, Study, build_study, override_study, read_study_file

PORTS = 65_536
DETACH_WAIT_S = 20.0
"""How long a detached daemon may take to say that it works."""
_QUOTED = re.compile(r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.""")
_SHELL_MARK = re.compile(r"[;|&<>$`]")
_EXTENSIBLE = ("budget", "max_trials", "max_crashes", "until_gain_below", "output")


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. `told`: the study's keys that it names."""

    told: Mapping[str, object]
    study_file: str | None = None
    resumed: str | None = None
    name_file: str | None = None
    detach: bool = False
    serve_best: bool = False
    then: str | None = None
    """A command to start once the GPUs are free again."""
    log_json: bool = False


def run(request: Request) -> int:
    """Run a study in the foreground, or detach it; the exit code."""
    if request.then is not None:
        _check_then(request)
    directory = _resumed(request) if request.resumed is not None else _begun(request)
    request = _remembered(directory, request)
    if request.detach:
        return _detach(directory, request)
    return _run_here(directory, request)


def _remembered(directory: Path, request: Request) -> Request:
    """What is to happen at the end outlives the process that was told: a resumed study need not be told again."""
    journal = Journal(directory)
    try:
        if request.serve_best or request.then is not None:
            journal.set_fact("at_end", {"serve_best": request.serve_best, "then": request.then})
            return request
        told = journal.fact("at_end") or {}
    finally:
        journal.close()
    return replace(request, serve_best=bool(told.get("serve_best")), then=told.get("then"))


def _begun(request: Request) -> Path:
    """A new study directory. Everything that can be wrong is found before it exists."""
    if request.study_file is not None:
        study = read_study_file(Path(request.study_file), request.told)
    else:
        study = build_study(request.told)
    if request.name_file is not None:
        check_writable(Path(request.name_file), "--name-file")
    try:
        directory = begin(study)
    except StudyFileError as error:
        raise StudyFileError(f"{request.study_file}: {error}" if request.study_file else str(error)) from None
    if request.name_file is not None:
        write_whole(Path(request.name_file), f"{directory.name}\n")
    return directory


def begin(study: Study) -> Path:
    """Check a study and write it down in a directory of its own, which is returned."""
    study = completed(study)
    check(study)
    directory = new_study_directory(_name(study))
    told = study.model_dump(mode="json", by_alias=True)
    facts = {"study": told, "model_path": study.model_path, "token": secrets.token_hex(8)}
    Journal.create(directory, facts).close()
    return directory


def _resumed(request: Request) -> Path:
    """An existing study, with its limits changed where the command line names new ones."""
    fixed = [key for key in request.told if key not in _EXTENSIBLE]
    if fixed or request.study_file is not None:
        what = fixed[0] if fixed else "config"
        raise StudyFileError(f"--{what}: a resumed study keeps what it began with; begin a new one")
    directory = find_study(request.resumed)
    if is_running(directory):
        holder = read_holder(directory / LOCK)
        raise StudyLocked(f"study {directory.name} is held by process {holder.pid if holder else '?'}")
    journal = Journal(directory)
    try:
        study = override_study(journal.fact("study"), request.told, directory.name)
        if journal.fact("done") and not request.told:
            raise StudyFileError(
                f"study {directory.name}: is finished ({journal.fact('done')}); give it more with --budget"
            )
        journal.set_fact("study", completed(study).model_dump(mode="json", by_alias=True))
        journal.set_fact("done", None)
    finally:
        journal.close()
    return directory


def completed(study: Study) -> Study:
    """Paths made absolute, so that the study can be resumed from anywhere; the preset's ranks filled in."""
    changes: dict[str, object] = {"output": str(Path(study.output).expanduser().absolute())}
    if study.model is not None and Path(study.model).expanduser().exists():
        changes["model"] = str(Path(study.model).expanduser().absolute())
    if isinstance(study.workload, str) and Path(study.workload).is_file():
        changes["workload"] = str(Path(study.workload).absolute())
    if study.simulated:
        changes |= _simulated(study)
    return study.model_copy(update=changes)


def _simulated(study: Study) -> dict[str, object]:
    from launcher.simulated.presets import load_preset

    model = load_preset(study.preset).model
    path = Path(study.preset)
    named = {*study.flags, *study.space.build().further}
    told = {} if TENSOR_PARALLEL & named else {"tp-size": model.tp_size}
    return {
        "flags": {**told, **study.flags},
        "preset": str(path.absolute()) if path.suffix in (".yaml", ".yml") else study.preset,
    }


def check(study: Study) -> None:
    """Find what is wrong before anything is started. Raises UsageError, StudyFileError or MachineError."""
    if study.model is not None and _is_path(study.model) and not Path(study.model).exists():
        raise StudyFileError(f"model: {study.model}: there is no such file or directory")
    if not study.simulated:
        check_executable(study.command, study.server_env().get("PATH"))
    if isinstance(study.warm_start, str):
        _check_earlier(study.warm_start)
    _check_world(study)
    _check_port(study)
    # A study must not find out after an hour that its answer cannot be written.
    check_writable(Path(study.output), "output")


def _check_world(study: Study) -> None:
    """Look at what the daemon will find here, and try the flags on the build, while there is no study to leave behind.

    What SGLang said of itself is kept, so that the daemon need not ask again.
    """
    from tuner.daemon.assemble import find_world

    with tempfile.TemporaryDirectory() as directory:
        world = find_world(study, Path(directory))
        world.gpus.close()
    warning(study, world.build)


def _check_earlier(name: str) -> None:
    try:
        find_study(name)
    except StudyFileError as error:
        raise StudyFileError(f"warm_start: {error}") from None


def _is_path(model: str) -> bool:
    """A hub name is `owner/name`; anything else with a slash is a path."""
    return model.startswith(("/", ".", "~")) or model.count("/") > 1


def _check_port(study: Study) -> None:
    """SGLang finds a busy port only after it has loaded the weights."""
    port = study.flags.get(PORT)
    if port is not None and not (isinstance(port, int) and 0 < port < PORTS):
        raise StudyFileError(f"flags: port: {port!r}: must be a whole number from 1 to {PORTS - 1}")
    if isinstance(port, int) and not is_free(port):
        raise MachineError(f"flags: port: {port} is in use by another process")


def _name(study: Study) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", Path(study.model_path).name.lower()).strip("-") or "study"


def _run_here(directory: Path, request: Request) -> int:
    from tuner.cli.screens import open_screen
    from tuner.daemon.assemble import run_study
    from tuner.daemon.interrupts import Interrupts

    screen = open_screen(directory, log_json=request.log_json)

    async def study() -> int:
        ending = await run_study(directory, screen, Interrupts(), serve_best=request.serve_best)
        return ending.code

    try:
        code = asyncio.run(study())
    finally:
        if request.then is not None:
            _start_then(request.then, directory)
    if not request.log_json:
        _print_result(directory)
    return code


def _check_then(request: Request) -> None:
    """Raises StudyFileError for words that are no command, and UsageError for a program that is not there."""
    if mark := _SHELL_MARK.search(_QUOTED.sub("", request.then or "")):
        raise StudyFileError(
            f"--then: {request.then!r}: is started without a shell, to which {mark[0]!r} would speak; write sh -c '...'"
        )
    try:
        words = shlex.split(request.then or "")
    except ValueError as error:
        raise StudyFileError(f"--then: {request.then!r}: {error}") from None
    if request.serve_best:
        raise StudyFileError("--then: does not go with --serve-best, which keeps the GPUs")
    if not words:
        raise StudyFileError("--then: names no command")
    check_executable(words, None, "--then")


def _start_then(command: str, directory: Path) -> None:
    """Start what ran before the study, in a session of its own, and leave it alone."""
    with (directory / "then.out").open("ab") as output:
        child = subprocess.Popen(
            shlex.split(command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    exits.say(f"started {command!r} as process {child.pid}; its output goes to {directory / 'then.out'}")
    child.returncode = 0  # Not ours any more: nobody waits for it.


def _print_result(directory: Path) -> None:
    from tuner.cli.tables import result_table

    view = read_study(directory)
    result_table(view)
    if view.incumbent is not None and (doubt := doubt_words(view.incumbent.completion_rate)):
        exits.say(f"WARNING: {doubt}")
    exits.say(f"study {view.study_id}: {view.ended or 'ended'}; {words(view.spent_s)} used")


def _detach(directory: Path, request: Request) -> int:
    """Start the daemon in a session of its own; come back when it works, or with what it said."""
    switches = ["--serve-best"] if request.serve_best else []
    switches += ["--then", request.then] if request.then is not None else []
    said = directory / "daemon.out"
    with said.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "tuner.cli", "--resume", str(directory), *switches],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    deadline_s = time.monotonic() + DETACH_WAIT_S
    while time.monotonic() < deadline_s:
        if child.poll() is not None:
            lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            exits.say(lines[-1] if lines else f"kvtune-auto: the daemon ended with {child.returncode}")
            return child.returncode
        if read_study(directory).environment.sglang_version and is_running(directory):
            break
        time.sleep(0.1)
    exits.say(f"process {child.pid} works on it; `kvtune-auto status {directory.name}` looks at it")
    print(directory.name)
    return exits.OK
