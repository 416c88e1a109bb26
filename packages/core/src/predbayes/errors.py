"""The exceptions of predbayes.

Every error that a user can cause derives from `PredbayesError` and carries one line that says what
is wrong and what to do. Anything else that escapes is a bug.

    PredbayesError
    ├── DataError          a file, a table or a partition is not what it should be
    ├── ExperimentError    a config, a record or a request to the runner that makes no sense
    ├── KeyFileError       a key that cannot be read, or is not what it should be
    ├── MissingPackageError  a package that an extra installs is not there
    ├── PlanError          a plan that cannot be read, or is not the one agreed on
    ├── PoolError          predictives that cannot be combined
    │   └── ImproperPoolError  a pool that is not a distribution
    ├── StudyError         a step that the study's state does not allow, or files that were altered
    │   └── NotApprovedError  a step that waits for a person at the site
    ├── TextError          text that would not show what it is
    ├── TrainingError      settings that cannot work together
    │   └── DivergedError  a fit whose numbers left the finite
    └── UploadError        what a site sent is malformed, of another version, or not finite
"""

import difflib
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_log = logging.getLogger(__name__)


class PredbayesError(Exception):
    """Something the caller can mend; the message says how."""


def is_line(error: BaseException) -> bool:
    """Return whether an error says in one line what a user can mend: ours, or that of a path."""
    if isinstance(error, OSError):
        return error.filename is not None
    return isinstance(error, PredbayesError)


class DataError(PredbayesError):
    """A file, a table or a partition is not what it should be."""


class ExperimentError(PredbayesError):
    """A config, a record or a request to the runner that makes no sense."""


class KeyFileError(PredbayesError):
    """A key that cannot be read, or is not what it should be."""


class MissingPackageError(PredbayesError):
    """A package that an extra installs is not there."""


class PlanError(PredbayesError):
    """A plan that cannot be read, or is not the one agreed on."""


class PoolError(PredbayesError):
    """Predictives that cannot be combined, or a pool that is not a distribution."""


class ImproperPoolError(PoolError):
    """A pool that is not a distribution."""


class StudyError(PredbayesError):
    """A step that the study's state does not allow, or files that were altered."""


class NotApprovedError(StudyError):
    """A step that waits for a person at the site."""


class TextError(PredbayesError, ValueError):
    """Text that would not show what it is; a schema's validators may raise it."""


class TrainingError(PredbayesError):
    """Settings that cannot work together, or a fit that diverged."""


class DivergedError(TrainingError):
    """A fit whose numbers left the finite."""


class UploadError(PredbayesError):
    """What a site sent is malformed, of another version, or not finite.

    Args:
        reason: What is wrong with it.
        file: The name of the file, if it came in one.
    """

    def __init__(self, reason: str, file: str = "") -> None:
        super().__init__(f"{file}: {reason}" if file else reason)
        self.reason = reason


@contextmanager
def checking(refusal: type[PredbayesError], file: str = "") -> Iterator[None]:
    """Refuse the file that is looked at in this block, whatever goes wrong.

    An error that nobody thought of, such as an overflow, then ends neither the command nor what it
    does with other files. The debug log has its traceback. Errors of this computer's disk stay.

    Args:
        refusal: What to raise.
        file: The name of the file, to begin the line with.
    """
    try:
        yield
    except (PredbayesError, OSError):
        raise
    except Exception as error:
        _log.debug("a file can't be checked", exc_info=True)
        why = f"this file can't be checked ({type(error).__name__})"
        raise refusal(f"{file}: {why}" if file else why) from error


_MANY = 1000  # names, of which nobody reads a list or waits for the nearest


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """The line for a name that does not exist: the nearest one that does, or all there are.

    Examples:
        >>> no_such("dataset", "mnits", ["mnist", "bike"])
        "no dataset 'mnits'; did you mean 'mnist'?"
        >>> no_such("dataset", "heart", ["mnist", "bike"])
        "no dataset 'heart'; there are bike, mnist"
    """
    names = sorted(known)
    if len(names) > _MANY:
        return f"no {kind} {name!r} among {len(names):,}"
    near = difflib.get_close_matches(name, names, n=1)
    if near:
        return f"no {kind} {name!r}; did you mean {near[0]!r}?"
    return f"no {kind} {name!r}; there are {', '.join(names) or 'none'}"
