"""From evidence to a Failure: find what the log proves, put it in its stage, and say what follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from launcher.failure import Culprit, Direction, Failure, FailureNumbers, Kind, Stage
from launcher.failures.evidence import Evidence
from launcher.failures.holders import find_holder
from launcher.failures.kills import Kill, find_kill
from launcher.failures.numbers import find_gpu, find_numbers
from launcher.failures.rule import Rule
from launcher.failures.rules import ORDERED
from launcher.failures.sentences import with_details
from launcher.failures.stages import is_capturing, place, stage_of
from launcher.failures.story import Message, Story, tell
from launcher.logs import Step
from launcher.redact import redact_text

_LINE_LENGTH = 600
_QUOTED_LENGTH = 240
_LAST_LINES = 5
_SHELL_CANNOT_RUN = (126, 127)
_WITHOUT_STAGE = {
    Kind.GPU_OOM_RUNTIME: Stage.UNDER_LOAD,
    Kind.KV_POOL_EXHAUSTED: Stage.UNDER_LOAD,
    Kind.HANG_WATCHDOG: Stage.UNDER_LOAD,
    Kind.CUDA_CRASH: Stage.UNDER_LOAD,
    Kind.HOST_OOM_HICACHE: Stage.HOST_POOL,
    Kind.GRAPH_CAPTURE_OTHER: Stage.GRAPH_CAPTURE,
    Kind.WARMUP_FAILED: Stage.WARM_UP,
}
"""Where a failure of this kind happens when the log is too short to tell."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that matched a message, and the words that did."""

    rule: Rule
    message: Message
    matched: str


def classify(evidence: Evidence) -> Failure | None:
    """The Failure that the evidence proves; None when there was none (warnings, retractions, an orderly end).

    Unknown stays Kind.UNKNOWN, with the last lines kept.
    """
    if evidence.ended_by_us:
        return None
    story = tell(evidence.log)
    finding = _best(_findings(story))
    if finding is not None:
        return _from_finding(finding, story, evidence)
    broken = next((m for m in reversed(story.messages) if m.is_crash and not story.survived(m)), None)
    kill = find_kill(evidence, story, crashed=broken is not None)
    if kill is not None:
        return _from_kill(kill, story, evidence)
    return _unexplained(broken, story, evidence) or _hung(story, evidence)


def _findings(story: Story) -> Iterator[Finding]:
    """At most one per message: the first rule, in their order, that matches it."""
    for message in story.messages:
        if message.harmless:
            continue
        errors = "\n".join(message.errors())
        for rule in ORDERED:
            matched = rule.match(message, errors)
            if matched is not None:
                if not (rule.survivable and story.survived(message)):
                    yield Finding(rule, message, matched[0])
                break


def _best(findings: Iterable[Finding]) -> Finding | None:
    """The lightest weight, then the earliest: a consequence never hides its cause."""
    return min(findings, key=lambda found: (found.rule.weight, found.message.number), default=None)


def _from_finding(finding: Finding, story: Story, evidence: Evidence) -> Failure:
    rule, message = finding.rule, finding.message
    stage = rule.stage or stage_of(message, evidence.stage)
    placed = place(rule, stage, capturing=is_capturing(message, story.milestones_before(message)))
    failure = Failure(
        kind=placed.kind,
        stage=stage or _WITHOUT_STAGE.get(placed.kind, Stage.LAUNCH),
        mem_fraction_direction=placed.mem_fraction,
        culprit=rule.culprit,
        retry=rule.retry,
        sentence=_sentence(finding),
        hicache_direction=rule.hicache,
        rank=str(message.rank) or None,
        gpu_index=find_gpu(message.text),
        exit_code=evidence.exit_code,
        numbers=_numbers(find_numbers(message.text), story),
        evidence=_proof(finding, story),
    )
    if failure.is_gpu_oom:
        failure = _blame_holder(failure, find_holder(message, story, evidence, failure.numbers))
    if failure.kind is Kind.HOST_OOM_KILLED:
        failure = _blame_hicache(failure, story)
    return with_details(failure)


def _sentence(finding: Finding) -> str:
    """The rule's sentence, with the line that matched where it is needed."""
    words = finding.matched.split("\n")[0]
    line = next((line for line in finding.message.lines if words in line and not line.startswith(" ")), words)
    if not finding.rule.quote:
        return finding.rule.sentence
    return f"{finding.rule.sentence}: {redact_text(' '.join(line.split())[:_QUOTED_LENGTH])}"


def _blame_holder(failure: Failure, holder: str | None) -> Failure:
    if holder is None:
        return failure
    return replace(
        failure,
        kind=Kind.GPU_BUSY_OTHER_PROCESS,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence=f"the GPU was not empty, clean up and try again: {holder}",
    )


def _blame_hicache(failure: Failure, story: Story) -> Failure:
    """HiCache had begun to take host memory: its size is per rank, and the ranks of a host add up."""
    sizes = [m.facts["host_gb"] for m in story.milestones if m.step is Step.HOST_POOL and "host_gb" in m.facts]
    if not sizes:
        return failure
    numbers = replace(failure.numbers, host_requested_gb=sum(sizes))
    return replace(failure, hicache_direction=Direction.DOWN, numbers=numbers)


def _numbers(found: FailureNumbers, story: Story) -> FailureNumbers:
    """The figures of the message; the fraction of the start's arguments where the message names none."""
    started = [m.facts["mem_fraction"] for m in story.milestones if "mem_fraction" in m.facts]
    if found.mem_fraction_seen is not None or not started:
        return found
    return replace(found, mem_fraction_seen=started[-1])


def _proof(finding: Finding, story: Story) -> tuple[str, ...]:
    """How far it had come, the message's first line, and the lines that matched."""
    message = finding.message
    words = finding.matched.split("\n")[0]
    reached = story.last_milestone_before(message)
    lines = [reached.lines[0]] if reached is not None else []
    lines.append(message.lines[0])
    lines += [line for line in message.lines[1:] if words in line][-2:]
    return tuple(_shown(line) for line in dict.fromkeys(lines))


def _from_kill(kill: Kill, story: Story, evidence: Evidence) -> Failure:
    who = "the kernel's OOM killer" if kill.by_kernel else "somebody else"
    failure = Failure(
        kind=Kind.HOST_OOM_KILLED if kill.by_kernel else Kind.KILLED,
        stage=story.last_stage or evidence.stage or Stage.LAUNCH,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.HOST_MEMORY if kill.by_kernel else Culprit.INFRASTRUCTURE,
        retry=not kill.by_kernel,
        sentence=f"{who} ended a process of the server: {_shown(kill.proof)}",
        exit_code=evidence.exit_code,
        numbers=_numbers(FailureNumbers(), story),
        evidence=tuple(dict.fromkeys((*_last_lines(story), _shown(kill.proof)))),
    )
    return with_details(_blame_hicache(failure, story) if kill.by_kernel else failure)


def _unexplained(broken: Message | None, story: Story, evidence: Evidence) -> Failure | None:
    """It died, and no rule knows why: unknown, with what it said last. `broken` is a crash that no rule names."""
    orderly = evidence.exit_code in (None, 0)
    if orderly and broken is None and not story.deaths:
        return None
    errors = broken.errors() if broken is not None else []
    missing = evidence.exit_code in _SHELL_CANNOT_RUN and not story.milestones
    said = f": {_shown(errors[-1].split(chr(10))[0])}" if errors else ""
    code = "" if evidence.exit_code is None else f" with code {evidence.exit_code}"
    return Failure(
        kind=Kind.COMMAND_NOT_FOUND if missing else Kind.UNKNOWN,
        stage=(broken and stage_of(broken, evidence.stage)) or story.last_stage or evidence.stage or Stage.LAUNCH,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.CONFIGURATION if missing else Culprit.UNKNOWN,
        retry=not missing,
        sentence="the launch command cannot be run" if missing else f"it ended{code}, for no known reason{said}",
        rank=(broken is not None and str(broken.rank)) or None,
        exit_code=evidence.exit_code,
        numbers=_numbers(FailureNumbers(), story),
        evidence=_last_lines(story),
    )


def _hung(story: Story, evidence: Evidence) -> Failure | None:
    """It lives, and nothing comes out of it any more: /health alone is no sign of work (#22779)."""
    if evidence.exit_code is not None or evidence.finished_recently is not False:
        return None
    health = "/health still says 200" if evidence.answers_health else "/health does not answer"
    silence = "" if evidence.silent_s is None else f"; its log has been silent for {evidence.silent_s:.0f} s"
    return Failure(
        kind=Kind.HANG_RUNTIME,
        stage=Stage.UNDER_LOAD,
        mem_fraction_direction=Direction.NONE,
        culprit=Culprit.INFRASTRUCTURE,
        retry=True,
        sentence=f"requests wait and none is finished any more ({health}{silence}): start it again on another port",
        evidence=_last_lines(story),
    )


def _last_lines(story: Story) -> tuple[str, ...]:
    lines = [line for message in story.messages[-_LAST_LINES:] for line in message.lines if line.strip()]
    return tuple(_shown(line) for line in lines[-_LAST_LINES:])


def _shown(line: str) -> str:
    return redact_text(line.strip()[:_LINE_LENGTH])
