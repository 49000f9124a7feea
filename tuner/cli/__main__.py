"""`python -m tuner.cli`: how a detached daemon is started, whatever PATH says."""

from tuner.cli import main

main()
