"""A study on one page: what was asked, the answer, how it was found, where the time went, what to do next."""

from tuner.report.markdown import markdown_page
from tuner.report.page import html_page

__all__ = ["html_page", "markdown_page"]
