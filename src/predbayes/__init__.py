"""Calibrated one-round federated learning.

Every site trains once and sends once; everybody gets back one model whose probabilities can be
trusted. The names below are the public API; they are imported on first use, so that
`import predbayes` alone costs nothing. `__init__.pyi` says the same to type checkers.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0.dev0"

_PUBLIC = {
    "predbayes.errors": [
        "DataError",
        "DivergedError",
        "ExperimentError",
        "ImproperPoolError",
        "MissingPackageError",
        "PoolError",
        "PredbayesError",
        "TrainingError",
        "UploadError",
    ],
    "predbayes.exchange.federation": ["Federation", "InProcess", "Task"],
    "predbayes.exchange.reference": ["ReferenceRows"],
    "predbayes.exchange.upload": ["Upload"],
    "predbayes.learning.distill": ["distill"],
    "predbayes.learning.estimators": ["SklearnClassifier", "SklearnRegressor"],
    "predbayes.learning.likelihood": ["FixedNoise", "LearnedNoise", "Likelihood", "Softmax"],
    "predbayes.learning.local": [
        "DeepEnsemble",
        "LocalLearner",
        "Network",
        "OptimizerSettings",
        "Predictor",
        "SGDLearner",
        "SGHMCLearner",
    ],
    "predbayes.learning.nets": ["cnn", "mlp"],
    "predbayes.methods.distilled": ["Distilled"],
    "predbayes.methods.ep_mcmc": ["EPMCMC"],
    "predbayes.methods.fedavg": ["FedAvg"],
    "predbayes.methods.fedbe": ["FedBE"],
    "predbayes.methods.fedkt": ["FedKT"],
    "predbayes.methods.fedpa": ["FedPA"],
    "predbayes.methods.fedprox": ["FedProx"],
    "predbayes.methods.fedyogi": ["FedYogi"],
    "predbayes.methods.method": ["Method", "run"],
    "predbayes.methods.oneshot": ["OneShotFL"],
    "predbayes.methods.pooled": ["Pooled"],
    "predbayes.methods.server_only": ["ServerOnly"],
    "predbayes.pools.auto": ["AutoPool"],
    "predbayes.pools.best_site": ["BestSite"],
    "predbayes.pools.beta": ["BetaPool", "mixture", "product"],
    "predbayes.pools.pool": ["Contribution", "Pool", "PoolState"],
    "predbayes.pools.tempered": ["Tempered"],
    "predbayes.posterior.cyclical": ["PRESETS", "SamplerSettings"],
    "predbayes.posterior.samples": ["WeightSamples"],
    "predbayes.posterior.sghmc": ["SGHMC"],
    "predbayes.predictive.families": ["Categorical", "Gaussian", "Predictive"],
    "predbayes.predictive.pooling": ["PredictiveSum"],
    "predbayes.predictive.tuning": ["TunedPool", "tune_beta", "tune_temperature", "tune_weights"],
    "predbayes.summand": ["Kept", "Summand", "TensorSum", "fold"],
}
_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'predbayes' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
