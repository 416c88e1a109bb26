"""Probability on y: predictive families, their sums and pools, tuning and metrics."""
