"""Datasets in their publishers' formats, and how rows are dealt to clients."""
