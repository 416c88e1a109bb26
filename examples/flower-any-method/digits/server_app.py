"""The coordinator's half: runs the method over the nodes that are there."""

import predbayes as pb
from digits.task import method, reference

app = pb.flower.server_app(method, reference=reference)
