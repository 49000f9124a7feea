"""What kvtop costs, beside vllmstat, btop and htop in the same terminal: `python -m bench.kvtop`."""
