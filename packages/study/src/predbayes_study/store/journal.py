"""A journal: a ledger beside a site or a key holder, whose entries have known forms.

    approvals.jsonl    who approved what, and who took it back
    heads.jsonl        heads of a coordinator's ledger that the site has seen
    budget.jsonl       what was released of each table
    holder.jsonl       whom a key holder admitted, and what it opened

Several commands may want to write at once: each holds the journal's lock while it reads what is
there, decides, and writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from predbayes.errors import StudyError
from predbayes.exchange.strict import Strict
from predbayes_study.store.files import locked
from predbayes_study.store.ledger import Ledger

R = TypeVar("R", bound=Strict)


@dataclass(frozen=True, slots=True)
class Journal(Generic[R]):
    """One file of entries.

    Args:
        path: Path of the file; it need not exist yet, and neither need its folder.
        forms: Class of the data of each step.
    """

    path: Path
    forms: Mapping[str, type[R]]

    def read(self) -> Iterator[tuple[str, R]]:
        """Yield every step and its data.

        An entry of another step or form is refused: the chain proves that nobody changed it since,
        not that predbayes wrote it.
        """
        for entry in Ledger(self.path).entries() if self.path.exists() else ():
            form = self.forms.get(entry.step)
            try:
                if form is None:
                    raise ValueError
                yield entry.step, form.model_validate_json(json.dumps(dict(entry.data)))
            except ValueError as error:
                where = f"entry {entry.number} of {self.path.name}"
                raise StudyError(f"{where} is not what predbayes writes: it was altered") from error

    @contextmanager
    def writing(self, timeout: float = -1) -> Iterator[Callable[[str, R], object]]:
        """Hold the journal, and yield what appends an entry, on the disk when it returns.

        Args:
            timeout: Seconds to wait for another command; -1: as long as it takes.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        ledger = Ledger(self.path)
        with locked(self.path.parent, f".lock-{self.path.stem}", timeout=timeout):
            if self.path.exists():
                ledger.mend()
            yield lambda step, data: ledger.append(step, data.model_dump(exclude_unset=True))
