"""Handwritten digits at several sites: any method of predbayes as a Flower app."""
