"""Checkpoints of several ranks: any layout reads what any other one wrote."""

from pathlib import Path

import pytest

from tests.thorough import nightly, thorough
from tests.train.checkpoint import sharded
from tests.train.ranks import Ranks


def well(ranks: Ranks, function, size: int, *arguments) -> None:
    ended = ranks.run(function, size, *arguments)
    assert ended.codes == [0] * size, "\n".join(ended.errors)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        pytest.param([4], [2], id="fsdp4-fsdp2", marks=nightly),
        pytest.param([2, 2], [3], id="hsdp2x2-fsdp3"),
        pytest.param([3], [2, 2], id="fsdp3-hsdp2x2", marks=nightly),
        pytest.param([], [2], id="replicated-fsdp2", marks=thorough),
        pytest.param([2], [], id="fsdp2-replicated"),
    ],
)
def test_any_layout_reads_any_other(tmp_path: Path, ranks: Ranks, written, read) -> None:
    def size(layout):
        return 2 if not layout else layout[0] * layout[-1] if len(layout) == 2 else layout[0]

    well(ranks, sharded.save, size(written), str(tmp_path), written)
    content = sum(t.numel() * t.element_size() for group in sharded.values().values() for t in group.values())
    parts = sharded.stored_bytes(tmp_path)
    assert len(parts) == size(written)
    assert sum(parts) == content  # each value once, however many ranks hold it
    assert max(parts) < 1.5 * content / len(parts)
    well(ranks, sharded.load, size(read), str(tmp_path), read)


def test_torchs_own_reader_reads_our_parts(tmp_path: Path, ranks: Ranks) -> None:
    well(ranks, sharded.save, 3, str(tmp_path), [3])
    well(ranks, sharded.load_with_torch, 2, str(tmp_path), [2])


def test_ranks_may_have_different_tensors(tmp_path: Path, ranks: Ranks) -> None:
    well(ranks, sharded.save_stages, 4, str(tmp_path))
    well(ranks, sharded.load_stages, 2, str(tmp_path))
