"""Captions people wrote are found, bounded and cleaned."""

import json
from pathlib import Path

import pytest

from curate.caption import NO_CAPTION, Caption, CaptionConfig
from curate.caption.written import find_written
from loader.storage import open_storage


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


def test_a_text_sidecar_comes_before_json(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "\ufeff A boat \n on a lake. \n")
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": "other"}))
    assert caption_of(tmp_path, tags={"title": "t"}) == Caption("A boat on a lake.", "sidecar:a.b.txt")


def test_a_json_sidecar_comes_before_the_container(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.json", json.dumps({"caption": "A boat.", "licence": "CC0"}))
    assert caption_of(tmp_path, tags={"title": "t"}) == Caption("A boat.", "sidecar:a.b.json")


@pytest.mark.parametrize("content", ["{", "[1]", '{"caption": 7}', '{"text": "x"}', b"\xff\xfe", "", "   "])
def test_a_wrong_sidecar_counts_as_absent(tmp_path: Path, content: str | bytes) -> None:
    put(tmp_path, "deep/a.b.json", content)
    assert caption_of(tmp_path, tags={"comment": "from inside"}) == Caption(
        "from inside", "container:comment"
    )


def test_nobody_wrote_one(tmp_path: Path) -> None:
    assert caption_of(tmp_path) == NO_CAPTION


def test_places_can_be_switched_off(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "A boat.")
    assert caption_of(tmp_path, tags={"title": "t"}, sidecars=False, container=False) == NO_CAPTION


def test_long_captions_are_cut_at_a_word(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "one two three four")
    assert caption_of(tmp_path, max_chars=9).text == "one two"


def test_a_file_too_large_to_be_a_caption_is_not_read(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.txt", "x" * 100_000)
    assert caption_of(tmp_path) == NO_CAPTION


def test_half_a_surrogate_pair_becomes_something_a_file_can_hold(tmp_path: Path) -> None:
    put(tmp_path, "deep/a.b.json", '{"caption": "boat \\ud800 sea"}')
    assert caption_of(tmp_path).text.encode()


def test_a_name_without_suffix_has_a_sidecar_too(tmp_path: Path) -> None:
    put(tmp_path, "v1.0/clip.txt", "A boat.")
    assert caption_of(tmp_path, "v1.0/clip").text == "A boat."
