"""The daemon: proposes, starts, measures, records and exports until the budget is gone, whatever happens."""
