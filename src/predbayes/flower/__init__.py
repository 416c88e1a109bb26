"""The same study over Flower: another way to move the same uploads. The only importer of flwr."""

HELLO, UPLOAD, ACK = "query.hello", "train.upload", "query.ack"
"""Kinds of messages; `predbayes.flower.wire` says what is in them."""
