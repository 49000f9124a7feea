"""`python -m tui` is `kvtop`."""

from tui.cli import main

main()
