"""The coordinator's half: need not know which models sites have."""

import predbayes as pb
from mixed.task import METHOD, reference

app = pb.flower.server_app(METHOD, reference=reference)
