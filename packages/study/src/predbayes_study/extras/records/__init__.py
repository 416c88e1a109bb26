"""A study for the record: the reporting items of its card, and an archive without data."""
