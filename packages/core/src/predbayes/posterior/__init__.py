"""Probability on weights: the SGHMC sampler, its cyclical schedule, and weight samples."""
