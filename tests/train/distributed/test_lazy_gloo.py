"""Groups for messages connect the ranks that exchange some."""

import json

import pytest

from tests.thorough import beyond
from tests.train.distributed import lazy_ranks


@pytest.mark.parametrize(("size", "partners"), beyond(1, [(8, 2), (32, 3)]))
def test_a_rank_has_a_socket_for_each_of_its_partners(size, partners, tmp_path, ranks):
    ended = ranks.run(lazy_ranks.message_ring, size, str(tmp_path), partners, True)
    assert ended.codes == [0] * size, ended.errors
    for rank in range(size):
        made, used = json.loads((tmp_path / f"{rank}.json").read_text())
        assert made <= 1 + 2 * partners  # one listens; others may have sent already
        # Messages come from as many ranks as they go to.
        assert used <= 1 + 2 * partners


def test_who_waits_for_a_lost_partner_ends_and_names_it(tmp_path, ranks):
    ended = ranks.run(lazy_ranks.lost_partner, 4, str(tmp_path), 2, grace_s=60)
    assert ended.codes[2] == -9
    for rank in (0, 1, 3):
        assert ended.codes[rank] not in (0, -9)
        assert "rank 2 was lost" in ended.errors[rank]
