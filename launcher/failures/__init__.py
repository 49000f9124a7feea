"""Why a server failed: evidence in, a Failure out. `classify` is the one function; the rules are in `rules/`."""

from launcher.failures.classify import classify
from launcher.failures.evidence import Evidence

__all__ = ["Evidence", "classify"]
