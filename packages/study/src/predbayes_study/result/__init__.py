"""From accepted uploads to a model, and what is known about it."""
