"""The answer as files: what SGLang loads, what a machine reads, and what other tools start."""

from tuner.export.beside import warning
from tuner.export.best import Answer, evidence_path, read_answer, write_best
from tuner.export.formats import FORMATS, render

__all__ = ["FORMATS", "Answer", "evidence_path", "read_answer", "render", "warning", "write_best"]
