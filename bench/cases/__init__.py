"""Field cases: real inputs with the right answer, run through the code that a user runs. `python -m bench.cases`."""
