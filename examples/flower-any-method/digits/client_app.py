"""A site's half: learns from its rows when it is asked."""

import predbayes as pb
from digits.task import method, rows

app = pb.flower.client_app(method, rows)
