"""MP4 whose steps from frame to frame are all 0, so that nothing tells its rate."""

import struct
from pathlib import Path

import pytest

from reelweave.curate.foreign.probe import probe
from reelweave.curate.frames.source import SourceError
from tests.cutting import curated
from tests.player import encode_numbered


def test_a_rate_that_is_a_guess_is_said(tmp_path: Path) -> None:
    path = encode_numbered(tmp_path / "film.mp4", 50, "-c:v libx264 -bf 0 -use_editlist 0")
    data = bytearray(path.read_bytes())
    at = data.index(b"stts") + 8
    assert struct.unpack_from(">III", data, at) == (1, 50, 512)
    struct.pack_into(">I", data, at + 8, 0)
    path.write_bytes(data)
    ((record, _),) = curated(path, tmp_path / "out", spans={"min_clip_s": 1.0})
    assert (record.state, record.frames) == ("kept", 50)
    words = f"its stamps tell one time for all frames; {record.fps:g} frames per second are a guess"
    assert record.reason == words
    with pytest.raises(SourceError, match="states one time for all of its frames"):
        probe(bytes(data))
