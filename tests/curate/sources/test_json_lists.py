"""Lists in one JSON document, as ActivityNet and Vript are published: every film is named, or the reason why not."""

import io
import json
from pathlib import Path

import pytest

from reelweave.curate.sources import json_lists
from reelweave.curate.sources.entries import InvalidEntry, ListEntry
from reelweave.curate.sources.inputs import list_sources
from reelweave.curate.sources.lists import read_list
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig

CONFIG = StorageConfig()
ACTIVITY_NET = {
    "v_QOlSCBRmfWY": {
        "duration": 82.73,
        "timestamps": [[0.83, 19.86], [17.37, 60.81]],
        "sentences": ["A young woman is seen.", " She dances. "],
    },
    "v_uqiMw7tQ1Cc": {"duration": 55.15, "timestamps": [[0, 4.14]], "sentences": ["A kite"]},
}
LISTS = {"timestamps": [[1, 2], [3, 4]], "sentences": ["a boat", "a kite"]}
ROWS = [{"start": 1, "end": 2, "text": "a boat"}, {"start": 3, "end": 4, "text": "a kite"}]


def entries(document: object) -> list[ListEntry | InvalidEntry]:
    text = document if isinstance(document, str) else json.dumps(document)
    return list(read_list(io.BytesIO(text.encode()), "list.json"))


def films(document: object) -> list[ListEntry]:
    found = entries(document)
    assert all(isinstance(one, ListEntry) for one in found), found
    return [one for one in found if isinstance(one, ListEntry)]


def test_activitynet_captions(tmp_path: Path) -> None:
    (tmp_path / "v_QOlSCBRmfWY.mp4").write_bytes(b"film")
    (tmp_path / "uqiMw7tQ1Cc.webm").write_bytes(b"film")
    (tmp_path / "train.json").write_text(json.dumps(ACTIVITY_NET, indent=1))
    other, one = list_sources([f"{tmp_path}/train.json"], CONFIG)
    assert (one.uri, one.fault) == (f"{tmp_path}/v_QOlSCBRmfWY.mp4", None)
    assert [(each.start, each.end, each.caption) for each in one.segments] == [
        (0.83, 19.86, "A young woman is seen."),
        (17.37, 60.81, "She dances."),
    ]
    assert one.segments[0].attributes == {"duration": "82.73", "video_id": "v_QOlSCBRmfWY"}
    assert (other.uri, other.fault) == (f"{tmp_path}/uqiMw7tQ1Cc.webm", None)


def test_activitynet_under_its_database() -> None:
    page = "https://www.youtube.com/watch?v=sJEjTtYuq7I"
    film = {
        "duration": 36.18,
        "subset": "training",
        "url": page,
        "annotations": [{"segment": [0.01, 7.5], "label": "Drinking beer"}],
    }
    (found,) = films(
        {"version": "1.3", "taxonomy": [{"nodeId": 0}], "database": {"sJEjTtYuq7I": film, "abc": film}}
    )[:1]
    assert found.ids == ("sJEjTtYuq7I", "v_sJEjTtYuq7I")
    assert [(one.start, one.end, one.attributes["label"]) for one in found.segments] == [
        (0.01, 7.5, "Drinking beer")
    ]


def vript(scene: str) -> dict[str, object]:
    parts = {"shot_type": "close-up", "content": f"Words of {scene}", "scene_title": "Tea"}
    return {"video_id": "339dXVNQXac", "clip_id": scene, "caption": parts, "voiceover": ["Hi"]}


def test_vript_lists_clips_that_are_files_of_their_own() -> None:
    scenes = [f"339dXVNQXac-Scene-00{number}" for number in (1, 2)]
    found = films(
        {"meta": {"video_id": "339dXVNQXac", "num_clips": 2}, "data": {one: vript(one) for one in scenes}}
    )
    assert [(one.ids, one.caption) for one in found] == [((one,), f"Words of {one}") for one in scenes]
    assert found[0].attributes["caption_shot_type"] == "close-up"
    assert found[0].attributes["video_id"] == "339dXVNQXac"
    row = json.dumps({"meta": {"num_clips": 2}, "clip_id": scenes[0], "caption": {"content": "Tea"}})
    (line,) = read_list(io.BytesIO(row.encode()), "vript.jsonl")
    assert isinstance(line, ListEntry)
    assert (line.ids, line.caption) == ((scenes[0],), "Tea")


@pytest.mark.parametrize(
    "document",
    [
        [{"video": "raw/a.mp4", **LISTS}],
        {"raw/a.mp4": LISTS},
        {"raw/a.mp4": ROWS},
        {"train": [{"path": "raw/a.mp4", **row} for row in ROWS]},
        {"0": {"path": "raw/a.mp4", **LISTS}},
        {"videos": [{"path": "raw/a.mp4", **LISTS}], "info": {}},
        {"path": "raw/a.mp4", **LISTS},
    ],
)
def test_layouts(document: object) -> None:
    found = films(document)
    assert {one.path for one in found} == {"raw/a.mp4"}
    assert [(each.start, each.end, each.caption) for one in found for each in one.segments] == [
        (1, 2, "a boat"),
        (3, 4, "a kite"),
    ]


def test_a_table_that_pandas_wrote_names_films_by_their_ids() -> None:
    one, other = films({"0": {"video_id": "abc", "caption": "a boat"}, "1": {"video_id": "def"}})
    assert (one.ids, one.caption, other.ids) == (("abc",), "a boat", ("def",))


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ('{"a": {"caption": "x"}, "a": {"caption": "y"}}', "has the key 'a' twice"),
        (
            '{"path": "a.mp4"}\n{"path": "b.mp4"}\n',
            r"is no JSON: .*; name it .jsonl if each line is an entry",
        ),
        ("[" * 100_000, "is nested too deeply"),
        ('"a.mp4"', "is no array"),
        ({"caption": "a boat"}, "names no film: its keys 'caption'"),
        (
            {
                "videos": [{"video_id": "video0", "start time": 1, "end time": 2}],
                "sentences": [{"video_id": "video0", "caption": "a boat"}],
            },
            r"has several tables of films \(videos, sentences\)",
        ),  # MSR-VTT
        ([["a.mp4", "a boat"]], "entry 1 is no object"),
        ({"a.mp4": {"timestamps": [[2, 1]]}}, r"entry 1 \(key 'a.mp4'\) columns timestamps = 2"),
        (
            {"a.mp4": {"caption": {"long": "x"}}},
            r"column caption = \{'long': 'x'\} is an object without a text",
        ),
        ([], "names no source; it is empty"),
    ],
)
def test_what_names_no_films_is_said(tmp_path: Path, document: object, words: str) -> None:
    path = tmp_path / "list.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    with pytest.raises(UsageError, match=words) as caught:
        list_sources([str(path)], CONFIG)
    assert "list.json" in str(caught.value)


def test_some_wrong_rows_are_rows_of_the_accounting(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"film")
    (tmp_path / "list.json").write_text(json.dumps({"a": {"caption": "a boat"}, "b": "a kite"}))
    one, other = list_sources([f"{tmp_path}/list.json"], CONFIG)
    assert (one.uri, one.caption) == (f"{tmp_path}/a.mp4", "a boat")
    assert (other.uri, other.fault) == (
        f"{tmp_path}/list.json#entry=2",
        '(key \'b\') is no object like {"path": "..."}',
    )


def test_a_document_too_large_for_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_lists, "MAX_JSON_BYTES", 20)
    with pytest.raises(UsageError, match=r"read as a whole; save it as .jsonl"):
        entries(ACTIVITY_NET)
