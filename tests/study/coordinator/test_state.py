"""An entry may be well chained and still no step: it is refused in one line."""

import pytest

from predbayes.errors import StudyError
from predbayes_study.coordinator.state import State
from predbayes_study.store.ledger import FIRST, Entry

DIGEST = "0" * 64
INIT = {"plan": DIGEST, "files": {}}


@pytest.mark.parametrize(
    ("step", "data"),
    [
        ("admit", {"site": "Alpha", "key": 7}),  # found by fuzzing: status asked for its length
        ("admit", {"site": "Alpha"}),
        ("admit", {"site": ["Alpha"], "key": DIGEST}),
        ("add", {"site": "Alpha", "digest": "../../x"}),
        ("add", {"site": [], "digest": DIGEST}),
        ("withdraw", {"site": "Alpha", "digest": None}),
        ("finish", {"number": "one"}),
        ("init", []),
        ("init", 5),
        ([], {}),  # found by fuzzing: no key of a table
        ("leave", {}),
    ],
)
def test_an_entry_that_is_no_step_is_refused(step, data):
    entries = [Entry(1, "now", "init", INIT, FIRST)]
    entries.append(Entry(2, "now", step, data, entries[0].digest))
    with pytest.raises(StudyError, match="ledger"):
        State.of(entries)


def test_what_steps_write_is_read():
    entries = [Entry(1, "now", "init", INIT, FIRST)]
    admitted = {"site": "Alpha", "key": DIGEST, "rows": 5}
    entries.append(Entry(2, "now", "admit", admitted, entries[0].digest))
    state = State.of(entries)
    assert (state.plan_digest, state.keys, state.agreed) == (
        DIGEST,
        {"Alpha": DIGEST},
        {"Alpha": 5},
    )
