"""Dataset card for Hugging Face, ``README.md``, by which `datasets.load_dataset` opens the folder by its name.

Without one it counts file endings, and takes ``.tar.idx`` files for tars.
"""

import glob
import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from reelweave.loader.storage.base import Storage

CARD = "README.md"
_OURS = "# written with the shards; without this line the card is left as it is"
_ALL = ["shards/*.tar"]


def card(shards: Iterable[tuple[str, str]]) -> bytes:
    """Return the card of a dataset from path and split of each shard; equal shards give equal bytes.

    Shards are listed by name only where there is more than one split.
    """
    splits: dict[str, list[str]] = {}
    for path, split in shards:
        splits.setdefault("validation" if split == "val" else split, []).append(path)
    paths: dict[str, Sequence[str]] = dict(sorted(splits.items()))
    if len(paths) == 1:
        paths = dict.fromkeys(paths, _ALL)
    return _card(paths)


def card_of_tars(tars: Iterable[str], is_all: bool) -> bytes:
    """Return the card of a folder of tars of other origin.

    Args:
        tars: paths of the tars.
        is_all: True if they are all files that end in .tar, for which one pattern per folder suffices.
    """
    if is_all:
        folders = sorted({posixpath.dirname(path) for path in tars})
        return _card({"train": [posixpath.join(glob.escape(folder), "*.tar") for folder in folders]})
    return _card({"train": sorted(map(glob.escape, tars))})


def place_card(storage: Storage, data: bytes) -> bool:
    """Write a card, and return True if it is there; False if there is one of other origin, which stays."""
    if storage.create(CARD, data):
        return True
    text = storage.read(CARD)
    if text != data and _OURS.encode() in text:
        storage.write(CARD, data)
    return text == data or _OURS.encode() in text


def write_card(storage: Storage, shards: Sequence[tuple[str, str]]) -> None:
    """Write the card of a dataset, unless it holds a card of other origin; none for a dataset without shards.

    Args:
        storage: storage of the dataset.
        shards: path and split of each shard.
    """
    if shards:
        place_card(storage, card(shards))


def _card(paths: Mapping[str, Sequence[str]]) -> bytes:
    lines = ["---", _OURS, "configs:", "- config_name: default", "  data_files:"]
    for split, listed in paths.items():
        lines += [f"  - split: {split}", "    path:", *(f"    - {json.dumps(path)}" for path in listed)]
    return "\n".join([*lines, "---", ""]).encode()
