"""Whole studies on one machine, to see how it works."""
