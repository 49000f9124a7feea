"""What real servers showed (reference.py), and the same clients against the simulated engine (replay.py)."""
