"""A site's half."""

import predbayes as pb
from images.task import method, rows

app = pb.flower.client_app(method, rows)
