from .coordinator.study import Study as Study
from .kit.kit import Kit as Kit
from .plan.schema import Plan as Plan
from .result.model import CalibratedModel as CalibratedModel
from .site.site import Site as Site
from .site.training import Training as Training
