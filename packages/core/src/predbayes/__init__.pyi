from . import partition as partition
from . import pools as pools
from .api.estimators import FederatedClassifier as FederatedClassifier
from .api.estimators import FederatedRegressor as FederatedRegressor
from .api.result import Result as Result
from .api.run import run as run
from .api.saved import load as load
from .errors import PredbayesError as PredbayesError
from .exchange.federation import InProcess as InProcess
from .exchange.reference import ReferenceRows as ReferenceRows
from .exchange.upload import Upload as Upload
from .learning.estimators import SklearnClassifier as SklearnClassifier
from .learning.estimators import SklearnRegressor as SklearnRegressor
from .learning.likelihood import LearnedNoise as LearnedNoise
from .learning.likelihood import Softmax as Softmax
from .learning.local import Learner as Learner
from .learning.local import Network as Network
from .learning.local import OptimizerSettings as OptimizerSettings
from .learning.local import SGDLearner as SGDLearner
from .learning.local import SGHMCLearner as SGHMCLearner
from .methods.distilled import Distilled as Distilled
from .methods.method import Method as Method
from .methods.pooled import Pooled as Pooled
from .posterior.cyclical import PRESETS as PRESETS
from .predictive import metrics as metrics
from .predictive.families import Categorical as Categorical
from .predictive.families import Gaussian as Gaussian
from .predictive.pooling import PredictiveSum as PredictiveSum

__all__: list[str]
__version__: str
