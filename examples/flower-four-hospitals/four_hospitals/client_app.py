"""A hospital's half: says who it is, and sends its upload when it is asked."""

from four_hospitals.task import read
from predbayes_flower.node import Node
from predbayes_flower.study_client import make_client_app

app = make_client_app(lambda context: Node.of_context(context, read))
