"""What a user of the library calls: `run`, its result, saving and loading, the estimators."""
