"""The load generator: one request after another, or many at once, timed."""

from tuner.load.answer import Answer
from tuner.load.body import Call, call_for
from tuner.load.client import Failed, LoadClient, Progress

__all__ = ["Answer", "Call", "Failed", "LoadClient", "Progress", "call_for"]
