"""Probability on y: predictive families, their sums and pools, tuning and metrics."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, ["metrics"])
