"""A site's half: learns from its rows when it is asked."""

import predbayes_flower
from digits.task import method, rows

app = predbayes_flower.client_app(method, rows)
