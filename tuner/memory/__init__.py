"""What a setting will hold, leave free and survive: a prior from config.json and the GPUs, exact after one start."""

from tuner.memory.geometry import ModelGeometry, read_geometry
from tuner.memory.host import HostMemory
from tuner.memory.learning import learn_memory
from tuner.memory.model import MemoryModel, MemoryPrediction
from tuner.memory.plan import PlanRow, plan_table
from tuner.memory.prior import MemoryPrior

__all__ = [
    "HostMemory",
    "MemoryModel",
    "MemoryPrediction",
    "MemoryPrior",
    "ModelGeometry",
    "PlanRow",
    "learn_memory",
    "plan_table",
    "read_geometry",
]
