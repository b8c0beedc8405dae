"""Datasets of numbered samples whose clips are a few bytes, and blend files over them."""

from pathlib import Path

import yaml

from loader.blend import Blend, open_blend
from loader.dataset import DatasetWriter
from loader.storage import open_storage
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


def leaf_keys(blend: Blend) -> list[list[str]]:
    """The keys of each leaf."""
    keys = blend.index.column("key").to_pylist()
    return [[keys[row] for row in blend.rows(leaf)] for leaf in range(len(blend.leaves))]
