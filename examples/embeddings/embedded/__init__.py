"""Embeddings at twenty sites, and one calibrated head for all of them."""
