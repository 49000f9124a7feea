"""Chaos: studies on the simulated engine's real processes, hit at random moments, resumed until they end."""
