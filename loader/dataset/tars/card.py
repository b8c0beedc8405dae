"""Dataset card for Hugging Face, ``README.md``, by which `datasets.load_dataset` opens the folder by its name.

Without one it counts file endings, and takes ``.tar.idx`` files for tars.
"""

import json
from collections.abc import Iterable, Sequence

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
    lines = ["---", _OURS, "configs:", "- config_name: default", "  data_files:"]
    for split, listed in paths.items():
        lines += [f"  - split: {split}", "    path:", *(f"    - {json.dumps(path)}" for path in listed)]
    return "\n".join([*lines, "---", ""]).encode()


def write_card(storage: Storage, shards: Sequence[tuple[str, str]]) -> None:
    """Write the card of a dataset, unless it holds a card of other origin; none for a dataset without shards.

    Args:
        storage: storage of the dataset.
        shards: path and split of each shard.
    """
    if not shards:
        return
    data = card(shards)
    if storage.create(CARD, data):
        return
    text = storage.read(CARD)
    if text != data and _OURS.encode() in text:
        storage.write(CARD, data)
