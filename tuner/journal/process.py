"""A process that cannot be mistaken for another: its pid and the moment it started."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    start_unix_s: float

    @classmethod
    def this(cls) -> Process:
        return cls(os.getpid(), psutil.Process().create_time())

    @property
    def alive(self) -> bool:
        """It runs, is no zombie, and is not another that was given its pid later."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.start_unix_s) < 1.0
            return same and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False
