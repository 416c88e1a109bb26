"""A site's half: learns from its rows, by a model of its own kind."""

import predbayes as pb
from mixed.task import METHOD, learner, rows

app = pb.flower.client_app(METHOD, rows, learner=learner)
