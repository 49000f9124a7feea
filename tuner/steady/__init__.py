"""Steady state without self-deception: where it begins, whether it is steady, and how sure."""

from tuner.steady.equilibrium import Room
from tuner.steady.level import LevelController
from tuner.steady.response import Moment, Response, Slo

__all__ = ["LevelController", "Moment", "Response", "Room", "Slo"]
