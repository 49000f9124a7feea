"""The contest on a real server's recorded starts and levels: nothing of the simulated engine is in it.

rows.py     the rows of bench.h200.truth as starts with their levels
case.py     a recording with the file that describes it, as a case of the contest
memory.py   tokens, headroom and death at any fraction, by the arithmetic of the recorded starts
rates.py    a level at any capacity and concurrency, interpolated between the recorded ones
world.py    one study on the recording
"""
