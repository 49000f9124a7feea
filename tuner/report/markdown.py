"""The report without pictures, for a terminal or a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.journal import StudyView
from tuner.report.facts import Facts, Rows, facts_of


def markdown_page(view: StudyView) -> str:
    """The same facts as the HTML page."""
    return "\n".join(_lines(facts_of(view))) + "\n"


def _lines(facts: Facts) -> Iterator[str]:
    yield f"# {facts.title}"
    if facts.simulated:
        yield "\n> Simulated: every number here comes from the simulated engine; no GPU was measured."
    yield "\n## The answer\n"
    yield "\n\n".join(facts.answer)
    yield "\n## What to do next\n"
    yield from (f"- {step}" for step in facts.next_steps)
    yield "\n## What was asked\n"
    yield from _table((("", ""), *facts.asked))
    yield "\n## Where the time went\n"
    yield from _table(facts.hours)
    yield "\n## Failures\n"
    yield from _failures(facts)
    if len(facts.levels) > 1:
        yield "\n## Every level\n"
        yield from _table(facts.levels)
    yield "\n## What it ran on\n"
    yield from _table((("", ""), *facts.environment))


def _failures(facts: Facts) -> Iterator[str]:
    if not facts.failures:
        yield "No start failed."
    for card in facts.failures:
        yield f"**Trial {card.trial_id}, {card.setting}**: {card.sentence} ({card.what})\n"
        if card.lines:
            yield "```\n" + "\n".join(card.lines) + "\n```\n"


def _table(rows: Rows) -> Iterator[str]:
    head, *body = rows
    yield _row(head)
    yield _row(["---"] * len(head))
    yield from (_row(row) for row in body)


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
