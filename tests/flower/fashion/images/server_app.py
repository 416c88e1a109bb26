"""The coordinator's half."""

import predbayes as pb
from images.task import method, reference

app = pb.flower.server_app(method, reference=reference)
