"""The same study over Flower: another way to move the same uploads. The only importer of flwr."""
