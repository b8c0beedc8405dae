"""Datasets of numbered samples whose clips are a few bytes, and blend files over them."""

from pathlib import Path

import yaml

from reelweave.loader.blend import Blend, open_blend
from reelweave.loader.dataset import DatasetWriter
from reelweave.loader.storage import open_storage
from tests.loader.stream_clips import make_sample


def write_dataset(folder: Path, train: int, val: int = 0) -> Path:
    """Keys are those of `keys`; a clip holds its key. The order of the shards is not that of the keys."""
    for split, count in (("train", train), ("val", val)):
        names = [f"{folder.name}-{split}-{number * 7 % count:03}" for number in range(count)]
        assert len(set(names)) == count, "7 divides the count"
        if split == "train":
            writer = DatasetWriter(open_storage(folder), max_shard_bytes=count * 4)
        for name in names:
            sample = make_sample(name, name.encode(), 5 + len(name) % 5, (80, 64))
            sample.row["split"] = split
            writer.add(sample)
        writer._flush()  # a shard holds one split
    with writer:
        pass
    return folder


def blend_of(file: Path, **splits: object) -> Blend:
    """The train split of a file of these splits."""
    file.write_text(yaml.safe_dump({"splits": splits}))
    return open_blend(str(file))


def content(blend: Blend, row: int) -> bytes:
    """The clip in a row, read as a stream reads it."""
    index = blend.plan_index
    place = (index.shard.item(row), index.offset.item(row), index.size.item(row))
    return bytes(blend.clip(row, blend.read_range(*place)).media)


def leaf_keys(blend: Blend) -> list[list[str]]:
    """The keys of each leaf."""
    keys = [blend.key(row) for row in range(len(blend.plan_index))]
    return [[keys[row] for row in blend.rows(leaf)] for leaf in range(len(blend.leaves))]
