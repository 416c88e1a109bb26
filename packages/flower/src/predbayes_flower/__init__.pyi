from .federation import FlowerFederation as FlowerFederation
from .method_client import client_app as client_app
from .method_server import server_app as server_app

HELLO: str
UPLOAD: str
ACK: str
__all__: list[str]
