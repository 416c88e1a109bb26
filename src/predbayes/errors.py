"""The exceptions of predbayes.

Every error that a user can cause derives from `PredbayesError` and carries one line that says what
is wrong and what to do. Anything else that escapes is a bug.

    PredbayesError
    ├── DataError          a file, a table or a partition is not what it should be
    ├── ExperimentError    a config, a record or a request to the runner that makes no sense
    ├── PoolError          predictives that cannot be combined, or a pool that is not a distribution
    ├── TrainingError      a fit that diverged or was set up with settings that cannot work
    └── UploadError        what a site sent is malformed, of another version, or not finite
"""


class PredbayesError(Exception):
    """Something the caller can mend; the message says how."""


class DataError(PredbayesError):
    """A file, a table or a partition is not what it should be."""


class ExperimentError(PredbayesError):
    """A config, a record or a request to the runner that makes no sense."""


class PoolError(PredbayesError):
    """Predictives that cannot be combined, or a pool that is not a distribution."""


class TrainingError(PredbayesError):
    """A fit that diverged, or settings that cannot work together."""


class UploadError(PredbayesError):
    """What a site sent is malformed, of another version, or not finite."""
