"""Captions people wrote are found, bounded and cleaned."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reelweave.curate.caption import NO_CAPTION, Caption, CaptionConfig
from reelweave.curate.caption.written import find_written
from reelweave.loader.errors import ObjectError
from reelweave.loader.storage import open_storage

TAG = "A boat on the lake at noon."


def caption_of(
    folder: Path,
    name: str = "deep/a.b.mp4",
    tags: dict[str, str] | None = None,
    caption: str | None = None,
    **config: object,
) -> Caption:
    return find_written(open_storage(folder), name, caption, tags or {}, CaptionConfig(**config))


def put(folder: Path, name: str, content: str | bytes) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def test_the_list_that_named_the_source_comes_first(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "A boat.")
    assert caption_of(tmp_path, caption=" A  kite. ") == Caption("A kite.", "input")
    assert caption_of(tmp_path, caption="  ") == Caption("A boat.", "sidecar:a.b.txt")


def test_a_list_of_captions_stands_for_its_first(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": [" ", "A boat.", "A kite."]}))
    written = ("A boat.", "A kite.")
    assert caption_of(tmp_path) == Caption("A boat.", "sidecar:a.b.json", written=written)
    # Of a list of one, or of the same words again, there is nothing further.
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": ["A boat.", " A  boat. "]}))
    assert caption_of(tmp_path) == Caption("A boat.", "sidecar:a.b.json")


def test_a_sidecar_that_lists_segments_captions_no_clip_with_its_first(tmp_path: Path) -> None:
    put(
        tmp_path,
        "deep/a.b.json",
        json.dumps({"caption": ["A boat.", "A kite."], "timestamp": [[0, 3], [3, 6]]}),
    )
    with pytest.raises(ObjectError, match=r"a\.b\.json lists captions of segments"):
        caption_of(tmp_path)
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": ["A boat."], "timestamp": [[0, 3]], "start": 3}))
    keys = {"unused_keys": "a.b.json (timestamp, start)"}
    assert caption_of(tmp_path) == Caption("A boat.", "sidecar:a.b.json", keys)


def test_a_text_sidecar_comes_before_json(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "\ufeff A boat \n on a lake. \n")
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": "other"}))
    assert caption_of(tmp_path, tags={"title": TAG}, container=True) == Caption(
        "A boat on a lake.", "sidecar:a.b.txt", {"other_sidecar": "a.b.json"}
    )
    # What is wrong with a file that is not needed keeps no caption back.
    put(
        tmp_path,
        "deep/a.b.json",
        json.dumps({"caption": ["A boat.", "A kite."], "timestamp": [[0, 3], [3, 6]]}),
    )
    assert caption_of(tmp_path) == Caption("A boat on a lake.", "sidecar:a.b.txt")


def test_a_json_sidecar_comes_before_the_container(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": "A boat.", "licence": "CC0"}))
    found = caption_of(tmp_path, tags={"title": TAG}, container=True)
    assert found == Caption("A boat.", "sidecar:a.b.json", {"unused_keys": "a.b.json (licence)"})


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "no valid JSON"),
        ("[1]", 'JSON that is no object with a "caption"'),
        ('{"caption": 7}', 'JSON whose "caption" is no text'),
        ('{"text": "x"}', 'JSON without the key "caption"'),
        (b"\xff\xfe", "empty"),
        ("", "empty"),
        ("   ", "empty"),
        ('{"caption": null}', "empty"),
        ("1" * 15_000, "no valid JSON"),
        ('{"caption": NaN}', 'JSON whose "caption" is no text'),
        ("[" * 15_000, "no valid JSON"),
        ('{"caption":' * 1400, "no valid JSON"),
        ('{"caption": "x", "caption": [2]}', 'JSON whose "caption" is no text'),
        ("x" * (1 << 20), "too large for a caption"),
    ],
)
def test_a_wrong_sidecar_counts_as_absent_and_is_told(
    tmp_path: Path, content: str | bytes, reason: str
) -> None:
    put(tmp_path, "deep/a.b.json", content)
    origin = f"unused:a.b.json ({reason})"
    assert caption_of(tmp_path) == Caption("", origin)
    found = caption_of(tmp_path, tags={"comment": TAG}, container=True)
    assert found == Caption(TAG, "container:comment", {"unused_sidecar": origin})
    put(tmp_path, "deep/a.b.txt", "A boat.")
    assert caption_of(tmp_path) == Caption("A boat.", "sidecar:a.b.txt")


def test_nobody_wrote_one(tmp_path: Path) -> None:
    assert caption_of(tmp_path) == NO_CAPTION


def test_places_can_be_switched_off(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "A boat.")
    assert caption_of(tmp_path, tags={"title": TAG}, sidecars=False) == NO_CAPTION


JUNK = [
    "0.9.143",
    "DE=None, FNum=2.8, Mode=Auto",
    "F/2.8, SS 320, ISO 100, EV 0, GPS (8.5417, 47.3769, 18)",
    "2023-05-04 12:33:10",
    "Created with iMovie on my old machine",
    "Lavf58.76.100",
    "HandBrake 1.6.1 2023012300",
    "VideoHandler of the main track",
    "https://example.org/watch?v=1 http://example.org/a-boat-on-the-lake",
    "DJI_0042 final cut version two",
    "untitled",
    "Copyright 2019 Somebody, all rights reserved",
    "a.b",
    "",
]


@pytest.mark.parametrize("tag", JUNK)
def test_what_software_leaves_in_a_container_is_no_caption(tmp_path: Path, tag: str) -> None:
    name = "DJI_0042 final cut version two.mp4" if tag.startswith("DJI") else "deep/a.b.mp4"
    assert caption_of(tmp_path, name, tags={"comment": tag}, container=True) == NO_CAPTION


@pytest.mark.parametrize(
    "tag",
    [
        "A red kite flies over the pier.",
        "Zwei Boote auf dem See, 1987",
        "一只红色的风筝飞过码头",
        "पानी पर दो नावें चलती हैं",
    ],
)
def test_a_tag_that_tells_of_something_is_one_when_asked_for(tmp_path: Path, tag: str) -> None:
    assert caption_of(tmp_path, tags={"comment": "0.9.143", "title": tag}, container=True).text == tag
    assert caption_of(tmp_path, tags={"title": tag}) == NO_CAPTION


def test_long_captions_are_cut_at_a_word(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "one two three four")
    found = caption_of(tmp_path, max_chars=9)
    assert (found.text, found.provenance) == ("one two", {"cut_of": "18 characters"})
    assert caption_of(tmp_path, max_chars=18).provenance == {}


def test_a_file_too_large_to_be_a_caption_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "x" * 100_000)
    assert caption_of(tmp_path) == Caption("", "unused:a.b.txt (too large for a caption)")


def test_half_a_surrogate_pair_becomes_something_a_file_can_hold(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.json", '{"caption": "boat \\ud800 sea"}')
    assert caption_of(tmp_path).text.encode()


def test_a_name_without_suffix_has_a_sidecar_too(tmp_path: Path) -> None:
    put(tmp_path, "v1.0/clip.txt", "A boat.")
    assert caption_of(tmp_path, "v1.0/clip").text == "A boat."


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: path.symlink_to(path)])
def test_a_sidecar_that_is_no_file_counts_as_absent(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "a.txt")
    assert caption_of(tmp_path, "a.mp4") == NO_CAPTION


def test_a_name_so_long_that_its_sidecar_cannot_exist_has_none(tmp_path: Path) -> None:
    assert caption_of(tmp_path, "x" * 251 + ".mp4") == NO_CAPTION
