"""What a stream says where processes would read each other's samples."""

import logging
from pathlib import Path

import torch.distributed as dist

from reelweave.loader.dataset import open_dataset
from reelweave.loader.stream.video_stream import VideoStream
from tests.loader.stream_clips import config
from tests.train.ranks import Ranks


def make_streams(dataset: str, out: str) -> None:
    """Makes streams of several ranks in each process, and notes what they say."""
    dist.init_process_group(dist.get_default_backend_for_device("cpu"))
    said, rank = [], dist.get_rank()
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("reelweave.loader.stream.checks.own_rank").addHandler(handler)
    for place in ((rank, 2), (0, 1), (0, 2)):
        said.append(str(place))
        VideoStream(open_dataset(dataset), config(decode=False), *place)
    Path(out, str(rank)).write_text("\n".join(said))
    dist.destroy_process_group()


def test_processes_that_would_read_each_others_samples_are_told(
    folder: Path, tmp_path: Path, ranks: Ranks
) -> None:
    ended = ranks.run(make_streams, 2, str(folder), str(tmp_path))
    assert ended.codes == [0, 0], ended.errors
    first, second = ((tmp_path / name).read_text().splitlines() for name in "01")
    assert [line.partition(",")[0] for line in first] == ["(0", "(0", "2 processes run", "(0"]
    assert [line.partition(",")[0] for line in second] == [
        "(1",
        "(0",
        "(0",
        "process 1 of 2 reads the samples of rank 0",
    ]
