"""Calibrated one-round federated learning."""

__version__ = "0.1.0.dev0"
