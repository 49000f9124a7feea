"""The report as one HTML file that needs nothing else: no network, no script, pictures inside."""

from __future__ import annotations

import base64

import jinja2

from tuner.journal import StudyView
from tuner.report.facts import facts_of
from tuner.report.pictures import pictures_of


def html_page(view: StudyView) -> str:
    """The whole page as text."""
    loader = jinja2.PackageLoader("tuner.report", ".")
    environment = jinja2.Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["embedded"] = _embedded
    return environment.get_template("page.html").render(facts=facts_of(view), pictures=pictures_of(view))


def _embedded(svg: str) -> str:
    """As an image of its own, so that the ids of several pictures cannot meet."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
