"""`python -m predbayes_study`: the command line."""

from predbayes_study.cli.app import main

main()
