"""Decides: space, memory model, search, workload, load, steady state, trial, journal, daemon, export, report."""
