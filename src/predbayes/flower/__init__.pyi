from .apps import client_app as client_app
from .apps import server_app as server_app
from .federation import FlowerFederation as FlowerFederation

HELLO: str
UPLOAD: str
ACK: str
__all__: list[str]
