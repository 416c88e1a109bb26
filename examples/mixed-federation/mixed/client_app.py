"""A site's half: learns from its rows, by a model of its own kind."""

import predbayes_flower
from mixed.task import METHOD, learner, rows

app = predbayes_flower.client_app(METHOD, rows, learner=learner)
