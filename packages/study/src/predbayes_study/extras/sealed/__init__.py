"""Sealed."""
