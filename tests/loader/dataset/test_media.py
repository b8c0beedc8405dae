"""Media and captions of samples that somebody else named."""

import json

import numpy as np
import pyarrow as pa
import pytest

from reelweave.loader.dataset.schema import INDEX
from reelweave.loader.dataset.tars.media import MAX_CAPTION_CHARS, caption_of, media_suffix
from reelweave.loader.dataset.tars.members import media_members


@pytest.mark.parametrize(
    ("suffixes", "media"),
    [
        (["json", "txt", "mp4"], "mp4"),
        (["jpg", "webm", "txt"], "webm"),
        (["left.mp4", "right.mp4"], "left.mp4"),
        (["txt", "npy"], None),
        ([], None),
        (["cls.png.txt", "seg.png"], "seg.png"),
    ],
)
def test_the_media_of_a_sample(suffixes: list[str], media: str | None) -> None:
    assert media_suffix(suffixes) == media


def test_columns_agree_with_the_rule_for_one_sample() -> None:
    rng = np.random.default_rng(0)
    names = ["json", "txt", "mp4", "jpg", "a.webm", "b.webm", "npy"]
    rows = []
    for number in range(200):
        suffixes = [names[place] for place in rng.permutation(len(names))[: rng.integers(0, len(names))]]
        listed = [
            {"suffix": suffix, "offset": place, "size": number} for place, suffix in enumerate(suffixes)
        ]
        rows.append({"shard": f"{number // 9}.tar", "members": listed})
    index = pa.Table.from_pylist(rows, pa.schema([INDEX.field("shard"), INDEX.field("members")]))
    found = media_members(index)
    for number, row in enumerate(rows):
        media = media_suffix(member["suffix"] for member in row["members"])
        places = [member["offset"] for member in row["members"] if member["suffix"] == media]
        assert found.place(number) == ((row["shard"], places[0], number) if places else None)


@pytest.mark.parametrize(
    ("members", "caption"),
    [
        ({"txt": b" a \n caption\0", "json": b'{"caption": "other"}'}, ("a caption", "member:txt")),
        ({"txt": b"caf\xc3\xa9 \xff"}, ("café \ufffd", "member:txt")),
        ({"txt": b"  ", "json": b'{"caption": 7, "text": "", "prompt": "p"}'}, ("p", "member:json")),
        ({"json": b'{"text": "\\ud83d half"}'}, ("? half", "member:json")),
        ({"json": b"[" * 100_000}, ("", "none")),
        ({"json": b'["", "a caption", "another"]'}, ("a caption", "member:json")),
        ({"json": b'{"caption": ["first", "second"], "text": "t"}'}, ("first", "member:json")),
        ({"json": b'[{"caption": ["deep"]}]'}, ("deep", "member:json")),
        ({"json": b'[{"caption": [[["too deep"]]]}, 7, null]'}, ("", "none")),
        ({"json": b'{"tags": ["a", "b"]}'}, ("", "none")),
        ({"json": b"{"}, ("", "none")),
        ({}, ("", "none")),
    ],
)
def test_the_caption_of_a_sample(members: dict[str, bytes], caption: tuple[str, str]) -> None:
    assert caption_of({suffix: memoryview(content) for suffix, content in members.items()}) == caption


def test_a_caption_is_bounded() -> None:
    long = "word " * 10_000_000
    for members in ({"txt": long.encode()}, {"json": json.dumps({"caption": long[:900_000]}).encode()}):
        caption, _ = caption_of(members)
        assert MAX_CAPTION_CHARS - 5 < len(caption) <= MAX_CAPTION_CHARS
        assert caption.endswith("word")
