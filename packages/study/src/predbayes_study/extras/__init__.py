"""The extras of predbayes itself: one package for each, found by its entry point."""
