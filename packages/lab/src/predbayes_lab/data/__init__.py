"""Datasets in their publishers' formats."""
