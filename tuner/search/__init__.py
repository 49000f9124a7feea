"""What to start next, what to measure in it, when to stop and who won: physics, and a Gaussian process on it."""

from tuner.search.options import SearchOptions
from tuner.search.searcher import Searcher
from tuner.search.verdict import Verdict
from tuner.search.workload_shape import WorkloadShape, shape_of

__all__ = ["SearchOptions", "Searcher", "Verdict", "WorkloadShape", "shape_of"]
