"""Calibrated one-round federated learning.

Every site trains once and sends once; everybody gets back one model whose probabilities can be
trusted. The public names are those of `__init__.pyi`; each is imported on first use, so that
`import predbayes` alone costs nothing.
"""

import lazy_loader

__version__ = "0.1.0.dev0"
"""The version of the package."""
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
