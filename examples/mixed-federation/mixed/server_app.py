"""The coordinator's half: need not know which models sites have."""

import predbayes_flower
from mixed.task import METHOD, reference

app = predbayes_flower.server_app(METHOD, reference=reference)
