"""The card by which Hugging Face's `datasets` opens a dataset by its folder's name."""

import json
import os
import subprocess
import sys
from pathlib import Path

from reelweave.loader.dataset import open_dataset, publish, write_shard
from reelweave.loader.dataset.shard import ShardRecord
from reelweave.loader.dataset.tars.card import CARD, write_card
from reelweave.loader.storage import open_storage
from tests.loader.dataset.test_dataset import make_sample, problems
from tests.loader.dataset.test_revisions import accounted
from tests.thorough import thorough

READ = """
import json, sys
import datasets
read = datasets.load_dataset(sys.argv[1], streaming=True)
found = {
    name: [(one["__key__"], one["txt"]) for one in part.cast_column("mp4", datasets.Video(decode=False))]
    for name, part in read.items()
}
print(json.dumps(found))
"""


def made(folder: Path, *samples: tuple[int, str]) -> list[ShardRecord]:
    """A dataset of one shard for each (sample, split)."""
    storage = open_storage(folder)
    shards = [
        write_shard(storage, number, [make_sample(sample, split=split)])
        for number, (sample, split) in enumerate(samples)
    ]
    publish(storage, shards, accounted(shards))
    return shards


@thorough
def test_the_bare_folder_opens_in_datasets_with_its_splits_and_without_a_network(tmp_path: Path) -> None:
    folder = tmp_path / "my-dataset"
    shards = made(folder, (1, "train"), (2, "val"), (3, "train"))
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], env=offline, capture_output=True, text=True, check=True
    )
    expected = {
        "train": [[row["key"], row["caption"]] for shard in (shards[0], shards[2]) for row in shard.rows],
        "validation": [[row["key"], row["caption"]] for row in shards[1].rows],
    }
    assert json.loads(ran.stdout.splitlines()[-1]) == expected
    assert problems(folder) == []


def test_a_new_revision_lists_its_shards_and_leaves_a_card_of_other_origin(tmp_path: Path) -> None:
    shards = made(tmp_path, (1, "train"))
    assert '"shards/*.tar"' in (tmp_path / CARD).read_text()
    for own in (False, True):
        if own:
            (tmp_path / CARD).write_text("# My films\n")
        storage = open_storage(tmp_path)
        shards = [*shards, write_shard(storage, len(shards), [make_sample(10 + len(shards), split="val")])]
        publish(storage, shards, accounted(shards), open_dataset(tmp_path).manifest)
        text = (tmp_path / CARD).read_text()
        assert (text == "# My films\n") if own else all(json.dumps(shard.path) in text for shard in shards)
    write_card(open_storage(tmp_path), [(shard.path, shard.split) for shard in shards])
    assert (tmp_path / CARD).read_text() == "# My films\n"


def test_a_dataset_without_a_shard_has_no_card(tmp_path: Path) -> None:
    made(tmp_path)
    assert not (tmp_path / CARD).exists()
