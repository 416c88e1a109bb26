"""Tumours at five sites, each with a model of its own kind."""
