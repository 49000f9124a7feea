"""What is simulated: a box of GPUs and a model on it. `README.md` beside this file explains every key."""

from launcher.simulated.presets.load import load_preset, preset_names, with_overrides
from launcher.simulated.presets.schema import Preset

__all__ = ["Preset", "load_preset", "preset_names", "with_overrides"]
