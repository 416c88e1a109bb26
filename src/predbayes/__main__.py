"""`python -m predbayes`: the command line."""

from predbayes.cli.app import main

main()
