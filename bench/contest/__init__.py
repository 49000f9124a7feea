"""The contest: the search and its rivals on the same simulated studies, with the same budget in simulated minutes.

cases.py    what is run: presets, workloads, spaces, and the ranges of what is hidden per seed
table.py    the true rate of every configuration, measured once per case in virtual time
world.py    one study's machine: starts, crashes and levels as a daemon would see them
ours.py     kvtune's search as a contestant
rivals.py   the other search methods
race.py     one study run by one method, and its score
report.py   the tables and the figures
"""
