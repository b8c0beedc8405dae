"""The profile of curation finds the functions that it times."""

import pytest

from tests.bench.curate_profile import PARTS, located


@pytest.mark.parametrize("place", [place for places in PARTS.values() for place in places])
def test_a_timed_function_is_where_the_profile_looks_for_it(place: str) -> None:
    _, attribute, found = located(place)
    assert callable(found) or isinstance(found, property), attribute
