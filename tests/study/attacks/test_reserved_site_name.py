"""Attack: a site called as the file that waits for its approval, which training then overwrote."""

import pytest

from predbayes.errors import UploadError
from predbayes_study.site.release import Approvals
from predbayes_study.site.training import Training
from predbayes_study.trust.signing import SigningKey
from tests.study.world import make_world


@pytest.mark.parametrize("name", ["held-back", "home", "nul"])
def test_training_refuses_the_name_before_it_begins(tmp_path, name):
    world = make_world(tmp_path)
    with pytest.raises(UploadError, match="no site may be called"):
        Training(world.kit, name, SigningKey.generate(), Approvals(tmp_path), tmp_path / "out")
