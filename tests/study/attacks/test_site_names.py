"""Attack: names that look like another site's, or that a computer takes for something else."""

import pytest

from predbayes.errors import StudyError, UploadError
from predbayes.exchange.strict import require_site_name
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world

REFUSED = {
    "a": [".", ".a", "-rf", " a", "a ", "a.", "a..", "a\n", "a\t", "a/b", "a\\b", "", "a" * 65],
    "forms": ["Zu\u0308rich", "A\u0301" * 10, "\u0301A"],
    "unseen": [f"A{c}B" for c in "\u202e\u200d\u00ad\u2066\u3000\u00a0\u034f\u115f\u3164\u2800"],
    "devices": [
        "CON",
        "nul",
        "con.safetensors",
        "Com1",
        "LPT9.key",
        "AUX .x",
        "\uff23\uff2f\uff2e",
    ],
    "reserved": ["held-back", "Held-Back-1", "home", "Evaluation", "Coordinator", "All of them"],
}


@pytest.mark.parametrize("name", [name for names in REFUSED.values() for name in names], ids=ascii)
def test_misleading_names_are_refused(name):
    with pytest.raises(UploadError):
        require_site_name(name)


@pytest.mark.parametrize("name", ["Basel", "Zürich", "Αθήνα", "दिल्ली", "St. Gallen", "A_1-"])
def test_honest_names_pass(name):
    assert require_site_name(name) == name


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("names")).begin(sites=("Basel", "Straße", "XII"))


@pytest.mark.parametrize("name", ["basel", "BASEL", "\uff22asel", "STRASSE", "\u216b", "xii"])
def test_another_spelling_is_no_second_site(study, name):
    with pytest.raises(StudyError, match="too like"):
        study.admit(name, SigningKey.generate().public)


def test_a_site_that_withdrew_does_not_come_back_under_another_spelling(tmp_path):
    world = make_world(tmp_path)
    study = world.begin(sites=("Alpha",))
    study.add(world.file("Alpha"))
    study.withdraw("Alpha")
    with pytest.raises(StudyError, match="too like Alpha"):
        study.admit("alpha", SigningKey.generate().public)
    assert study.admit("Alpha", SigningKey.generate().public)
