"""The coordinator's half: runs the method over the nodes that are there."""

import predbayes_flower
from digits.task import method, reference

app = predbayes_flower.server_app(method, reference=reference)
