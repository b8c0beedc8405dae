"""Captions of whole films in lists: the column that holds them, and what is none."""

import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reelweave.curate.sources.entries import ListEntry
from reelweave.curate.sources.lists import read_list

BOAT = "A boat leaves the harbour."


def entry(row: dict[str, object]) -> ListEntry:
    """The only entry of a list of one row."""
    (only,) = read_list(io.BytesIO(json.dumps(row).encode()), "list.jsonl")
    assert isinstance(only, ListEntry)
    return only


@pytest.mark.parametrize("name", ["text", "Text", "prompt", "captions", "dense_caption", "short caption"])
def test_a_film_has_its_caption_in_the_columns_of_segments(name: str) -> None:
    whole = entry({"path": "a.mp4", name: BOAT, "fps": 24})
    assert (whole.caption, whole.attributes) == (BOAT, {"fps": "24"})
    part = entry({"path": "a.mp4", name: BOAT, "start": 1, "end": 2})
    assert [segment.caption for segment in part.segments] == [BOAT]


def test_the_column_caption_comes_first_and_others_stay() -> None:
    row = entry({"path": "a.mp4", "text": "A title", "caption": BOAT, "prompt": "boat"})
    assert (row.caption, row.attributes) == (BOAT, {"text": "A title", "prompt": "boat"})
    row = entry({"path": "a.mp4", "sentences": [BOAT, "Waves."]})
    assert row.caption == BOAT
    assert json.loads(row.attributes["sentences"]) == [BOAT, "Waves."], "the others are in no caption"


@pytest.mark.parametrize("word", ["nan", "NaN", "None", "null", " N/A ", "<NA>"])
def test_words_for_a_missing_caption_are_none(word: str) -> None:
    file = io.BytesIO()
    pq.write_table(pa.table({"path": ["a.mp4", "b.mp4"], "caption": [word, BOAT]}), file)
    file.seek(0)
    captions = [row.caption for row in read_list(file, "list.parquet") if isinstance(row, ListEntry)]
    assert captions == [None, BOAT]
    part = entry({"path": "a.mp4", "caption": word, "start": 1, "end": 2})
    assert [segment.caption for segment in part.segments] == [None]
