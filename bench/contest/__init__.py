"""The contest: the search and its rivals on the same studies, with the same budget: simulated, and replayed.

cases.py      what is run: presets, workloads, spaces, and the ranges of what is hidden per seed
simulated.py  one study's simulated machine: starts, crashes and levels as a daemon would see them
table.py      its true rate of every configuration, measured once per case in virtual time
recorded/     the same on the starts and levels of a real server
ours.py       kvtune's search as a contestant
rivals.py     the other search methods
race.py       one study run by one method on one world, and its score
report.py     the tables and the figures
"""
