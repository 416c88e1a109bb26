"""Own rows among reference rows are found, and honest tables pass."""

import pytest
import torch

from predbayes.seeding import generator
from predbayes_study.site import overlap as module
from predbayes_study.site.overlap import LEAST_ROWS, overlap


def normal(num_rows, name, width=6):
    return torch.randn(num_rows, width, generator=generator(0, "overlap", name))


def words(num_rows, name):
    return torch.randint(3, (num_rows, 8), generator=generator(0, "overlap", name)).float()


@pytest.mark.parametrize("draw", [normal, words])
@pytest.mark.parametrize("number", range(4))
def test_rows_of_one_population_are_not_refused(draw, number):
    found = overlap(draw(300, f"reference {number}"), draw(150, f"own {number}"))
    assert found.near <= found.likely


def test_a_copy_is_found_and_so_is_one_with_little_noise():
    own, reference = normal(150, "own"), normal(300, "reference")
    assert overlap(reference, own).near == 0
    reference[7] = own[3]
    assert (overlap(reference, own).equal, overlap(reference, own).near) == (1, 1)
    reference[7] += 1e-3
    found = overlap(reference, own)
    assert (found.equal, found.near) == (0, 1)
    assert found.near > found.expected


def test_people_who_are_there_twice_explain_some():
    own = normal(100, "own").repeat(2, 1)
    reference = normal(300, "reference")
    reference[:5] = own[:5]
    assert overlap(reference, own).near <= overlap(reference, own).expected


def test_the_units_of_a_plan_hide_nothing():
    own, reference = normal(150, "own"), normal(300, "reference")
    reference[7] = own[3] + 1e-4
    wide = torch.tensor([1e6, 1.0, 1.0, 1.0, 1.0, 1e-6])
    assert overlap(reference * wide, own * wide).near == overlap(reference, own).near == 1


def test_of_a_large_table_copies_are_found_everywhere(monkeypatch):
    monkeypatch.setattr(module, "MOST_OPERATIONS", 50 * 2000 * 6)
    own, reference = normal(2000, "own"), normal(300, "reference")
    reference[7] = own[1234]
    assert overlap(reference, own).equal == 1


def test_a_column_that_the_site_lacks_hides_no_copy():
    own, reference = normal(150, "own"), normal(300, "reference")
    reference[7] = own[3]
    own[:, 2] = 0.0
    assert (overlap(reference, own).equal, overlap(reference, own).near) == (1, 1)


def test_among_few_rows_copies_are_counted():
    own, reference = normal(LEAST_ROWS - 1, "own"), normal(300, "reference")
    assert overlap(reference, own).near == 0
    reference[:3] = own[:3]
    found = overlap(reference, own)
    assert (found.equal, found.near, found.expected) == (3, 3, 0)
