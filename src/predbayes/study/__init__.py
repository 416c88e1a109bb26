"""A study from plan to result, with no network at all: sites hand over one file each."""
