"""The format on disk: a dataset that is kept byte for byte, and the page that describes it."""

import json
import re
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reelweave.curate.takedown.removal import remove
from reelweave.loader.buckets.assignment import BucketConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.manifest import Removal, digest
from reelweave.loader.dataset.schema import FORMAT_VERSION, MEMBER_ORDER, OPTIONAL, STATES, TABLES
from reelweave.loader.errors import RunError
from reelweave.loader.read.stream_config import StreamConfig
from reelweave.loader.storage import open_storage
from reelweave.loader.stream.video_stream import VideoStream

KEPT = Path(__file__).parent / "format_2"
"""Written on 2026-11-26 from three videos of one scene; the third came with a second curation, as revision 1."""
PAGE = Path(__file__).parents[3] / "docs" / "dataset.md"


def stream_config(**changes: object) -> StreamConfig:
    buckets = BucketConfig(
        frames=(9, 25),
        sizes=((64, 96),),
        compression=Compression(frames=4, height=16, width=16, causal=True),
        max_text_tokens=16,
        memory_tokens=400,
        **changes,
    )
    return StreamConfig(buckets=buckets, epochs=1)


def test_a_kept_dataset_is_whole_and_streams() -> None:
    assert FORMAT_VERSION == 2, "keep a dataset of the new format beside this one, and write how to upgrade"
    assert verify(open_storage(KEPT)).problems == []
    dataset = open_dataset(KEPT)
    assert [(sample.row["source"], sample.row["caption"]) for sample in dataset] == [
        (f"raw/{number}.mp4", f"scene {number}") for number in (2, 0, 1)
    ]
    batches = list(VideoStream(dataset, stream_config(), 0, 1))
    assert {key for batch in batches for key in batch.keys} == {sample.row["key"] for sample in dataset}
    assert {tuple(batch.video_BCTHW.shape[1:]) for batch in batches} == {(3, 25, 64, 96)}


def test_a_kept_dataset_and_a_run_on_it_go_on_with_this_version(tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "ds")
    stream = VideoStream(open_dataset(tmp_path / "ds"), stream_config(max_batch=1), 0, 1)
    iterator = iter(stream)
    [seen] = next(iterator).keys
    state = stream.state_dict()
    iterator.close()
    gone, *left = sorted({sample.row["key"] for sample in open_dataset(KEPT)} - {seen})
    remove(
        open_storage(tmp_path / "ds"),
        Removal(key=gone, date="2026-11-27", reason="the owner asked", samples=0),
    )
    assert verify(open_storage(tmp_path / "ds")).problems == []
    dataset = open_dataset(tmp_path / "ds")
    assert dataset.manifest.revision == 2
    later = VideoStream(dataset, stream_config(max_batch=1), 0, 1)
    later.load_state_dict(state)
    assert [key for batch in later for key in batch.keys] == left


def test_tables_have_the_columns_of_the_kept_ones() -> None:
    """A change of a schema is another format."""
    for name, schema in TABLES.items():
        assert pq.read_schema(KEPT / f"{name}.000001.parquet").remove_metadata().equals(schema), name


@pytest.mark.parametrize("version", [1, 3])
def test_another_format_is_refused_by_number(version: int, tmp_path: Path) -> None:
    shutil.copytree(KEPT, tmp_path / "ds")
    manifest = tmp_path / "ds" / "manifest.json"
    body = json.loads(manifest.read_text()) | {"format_version": version}
    del body["sha256"]
    manifest.write_text(json.dumps(body | {"sha256": digest(body)}))
    with pytest.raises(RunError, match=rf"format version {version}; .*reads version 2.*0\.1\.0"):
        open_dataset(tmp_path / "ds")


def test_the_page_names_every_column_member_and_state() -> None:
    text = PAGE.read_text()
    table = text.split("## Columns")[1].split("`accounting.parquet`:")[0]
    rows = [row.split(" | ") for row in re.findall(r"^\| (`.+) \|$", table, re.M)]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row[0])]
    assert named == TABLES["index"].names
    optional = {
        name for row in rows if row[2].startswith("optional") for name in re.findall(r"`(\w+)`", row[0])
    }
    assert optional == OPTIONAL.keys()
    for name in ("accounting", "scores"):
        columns = re.search(rf"`{name}\.parquet`: (.+?)\.$", text, re.M)[1]
        states = re.search(r" \((.+?)\)", columns)
        if states:
            assert re.findall(r"`(\w+)`", states[1]) == list(STATES)
            columns = columns.replace(states[0], "")
        assert re.findall(r"`(\w+)`", columns) == TABLES[name].names
    assert re.findall(r"`KEY\.([\w.]+)`", text) == list(MEMBER_ORDER)
