"""What a running study tells: a calm screen on a terminal, plain lines elsewhere, JSON lines for machines."""

from tuner.progress.lines import JsonLines, PlainLines
from tuner.progress.scene import Screen, TrialNow
from tuner.progress.terminal import Terminal

__all__ = ["JsonLines", "PlainLines", "Screen", "Terminal", "TrialNow"]
