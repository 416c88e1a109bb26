"""Studies and methods over Flower: another way to move the same uploads. The only importer of flwr.

    FlowerFederation   any method over a Flower grid, for `pb.run`
    client_app         a ClientApp of two lines: a method and a site's rows
    server_app         its ServerApp

The rest is the study's: sites follow the plan that they approved, and sign what they send.
"""

import lazy_loader

__version__ = "0.1.0.dev0"
"""The version of the package; all four have one."""
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

HELLO, UPLOAD, ACK = "query.hello", "train.upload", "query.ack"
"""Kinds of messages; `predbayes_flower.wire` says what is in them."""
