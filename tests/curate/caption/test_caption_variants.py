"""Several captions of one clip: variants by a model, written lists, and the table that holds them."""

import json
import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from reelweave.curate.caption import Caption, CaptionConfig, Captioner
from reelweave.curate.caption.prompts import FIELDS
from reelweave.curate.caption.structured import MOST_FIELD_CHARS, parse_structured
from reelweave.curate.config import CurateConfig
from reelweave.curate.ledger.ledger import Ledger
from reelweave.curate.run.assembly import judge_of, model_stages
from reelweave.curate.run.curate import Outcome, curate
from reelweave.curate.run.stages.joined_stage import JoinedStage, join_stages
from reelweave.curate.takedown.removal import remove
from reelweave.loader.dataset import open_dataset, verify
from reelweave.loader.dataset.manifest import Removal
from reelweave.loader.dataset.schema import CAPTIONS
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import open_storage
from reelweave.pipelines.cli import main
from tests.chat_server import ChatServer, chat_server, pictures
from tests.media import write_video
from tests.tiny_vlm import tiny_vlm

SENTENCE = "a red kite flies over the sea ."

SCENE = {name: f"A {name} that is easy to see." for name in FIELDS}
LONG = "A red kite flies over the sea. A child runs along the beach below it."
SHORT = "A kite over the sea."


def prompt_of(body: dict[str, Any]) -> str:
    return str(body["messages"][0]["content"][-1]["text"])


def reply(body: dict[str, Any]) -> str:
    prompt = prompt_of(body)
    if "JSON object" in prompt:
        return f"```json\n{json.dumps(SCENE, indent=2)}\n```"
    return SHORT if "one sentence" in prompt else LONG


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as served:
        served.reply = reply
        yield served


def captions(server: ChatServer, **more: object) -> dict[str, object]:
    given = {"model": "teller", "backend": "endpoint", "endpoint_url": server.url, "endpoint_timeout_s": 60}
    return {**given, "short_side_px": 64, "variants": {"short": "short", "parts": "structured"}, **more}


def run(folder: Path, values: dict[str, object], **change: bool) -> Outcome:
    given = {
        "run": {"runner": "sequential", "isolate": False},
        "spans": {"min_clip_s": 1},
        "captions": values,
    }
    return curate([str(folder / "raw")], str(folder / "out"), CurateConfig.model_validate(given), **change)


def table(folder: Path) -> list[dict[str, Any]]:
    path = open_dataset(folder / "out").manifest.table("captions").path
    return list(pq.read_table(folder / "out" / path).to_pylist())


@pytest.fixture
def films(tmp_path: Path) -> Path:
    """A film without a written caption, and one with a list of them."""
    (tmp_path / "raw").mkdir()
    for name, first in (("a", 0), ("b", 5)):
        write_video(tmp_path / f"raw/{name}.mp4", (40,), size=(320, 192), first_scene=first)
    (tmp_path / "raw/b.json").write_text(json.dumps({"caption": ["A boat.", "A boat on a lake.", "Water."]}))
    return tmp_path


def test_every_kept_clip_gets_its_variants_beside_its_caption(
    films: Path, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run(films, captions(server))
    dataset = open_dataset(films / "out")
    of_source = {Path(row["source"]).stem: row for row in dataset.index.to_pylist()}
    assert (of_source["a"]["caption"], of_source["b"]["caption"]) == (LONG, "A boat.")
    # The caption itself is the member txt, as without variants; its clip has no further member.
    assert [member["suffix"] for member in of_source["a"]["members"]] == ["json", "txt", "video.npy", "mp4"]
    rows = table(films)
    by_name = {(row["key"], row["name"], row["number"]): row for row in rows}
    assert list(by_name) == sorted(by_name)
    a, b = of_source["a"]["key"], of_source["b"]["key"]
    for key in (a, b):  # the model is asked for them, written caption or not
        assert by_name[key, "short", 0]["caption"] == SHORT
        assert json.loads(by_name[key, "parts", 0]["caption"]) == SCENE
        assert by_name[key, "short", 0]["text_tokens"] == 5
        assert by_name[key, "short", 0]["caption_source"] == "model:teller"
        provenance = dict(by_name[key, "parts", 0]["caption_provenance"])
        assert (provenance["prompt"], "structured" in provenance["checks"].split()) == ("structured", True)
    written = [row for row in rows if row["name"] == "written"]
    assert [(row["key"], row["caption"], row["number"]) for row in written] == [
        (b, "A boat.", 0),
        (b, "A boat on a lake.", 1),
        (b, "Water.", 2),
    ]
    assert any("1 clip has a list of written captions" in note for note in outcome.notes)
    assert verify(open_storage(films / "out")).problems == []
    parts = open_dataset(films / "out").further_parts("captions")
    assert parts is not None
    assert main(["show", str(films / "out"), b]) == 0
    shown = capsys.readouterr().out
    assert all(words in shown for words in ("caption short", SHORT, "caption written 2", "A boat on a lake."))
    assert next(parts).schema.equals(CAPTIONS)


def test_another_variant_asks_for_nothing_that_is_there(films: Path, server: ChatServer) -> None:
    run(films, captions(server, variants={"short": "short"}))
    asked = Counter(map(prompt_of, server.bodies))
    assert sorted(asked.values()) == [1, 2]
    before = table(films)
    server.bodies.clear()
    run(films, captions(server), update=True)
    assert all("JSON object" in prompt_of(body) for body in server.bodies)
    assert len(server.bodies) == 2
    assert [row for row in table(films) if row["name"] != "parts"] == before
    # Without variants the table of written lists is left; the captions stay.
    server.bodies.clear()
    run(films, captions(server, variants={}), update=True)
    assert {row["name"] for row in table(films)} == {"written"}
    assert server.bodies == []


def test_a_variant_without_an_answer_is_a_row_with_its_reason(films: Path, server: ChatServer) -> None:
    server.reply = lambda body: "A kite." if "JSON object" in prompt_of(body) else reply(body)
    outcome = run(films, captions(server, max_attempts=2, min_words=1))
    assert len(open_dataset(films / "out")) == 2
    failed = [row for row in table(films) if row["name"] == "parts"]
    reason = "it did not write JSON of the texts subject, action, camera, light, style"
    assert all(row["caption"] is None and reason in row["reason"] for row in failed)
    assert all("in 2 attempts" in row["reason"] for row in failed)
    (note,) = (note for note in outcome.notes if "no caption parts" in note)
    assert note.startswith("2 clips have no caption parts")
    server.reply = reply
    run(films, captions(server, max_attempts=2, min_words=1), retry_failed=True)
    assert [json.loads(row["caption"]) for row in table(films) if row["name"] == "parts"] == [SCENE] * 2


def test_a_take_down_takes_all_captions_of_a_clip(films: Path, server: ChatServer) -> None:
    run(films, captions(server))
    gone, stays = (row["key"] for row in open_dataset(films / "out").index.to_pylist())
    storage = open_storage(films / "out")
    remove(storage, Removal(key=gone, date="2026-11-30", reason="asked", samples=0))
    assert {row["key"] for row in table(films)} == {stays}
    assert {row["key"] for row in pq.read_table(films / "out/captions.parquet").to_pylist()} == {stays}
    assert verify(storage).problems == []
    held = [path for path in (films / "out/.ledger").glob("captions*/**/*") if path.is_file()]
    assert {path.parts[-3] for path in held} == {"captions", "captions.short", "captions.parts"}
    assert not any(gone.encode() in path.read_bytes() or gone in path.name for path in held)


def test_all_questions_about_a_clip_are_in_flight_together(films: Path, server: ChatServer) -> None:
    server.pause_s = 0.3
    clip = (films / "raw/a.mp4").read_bytes()
    config = CaptionConfig.model_validate(captions(server, batch_clips=4))
    captioner = Captioner(config)
    view = captioner.prepare(clip)
    answers = captioner.answer([replace(view, variant=name) for name in ("", "short", "parts")])
    assert [type(answer) for answer in answers] == [Caption] * 3
    assert server.most == 3


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (json.dumps(SCENE), SCENE),
        (json.dumps({**SCENE, "mood": "calm"}), None),
        (json.dumps({name: SCENE[name] for name in FIELDS[1:]}), None),
        (json.dumps({**SCENE, "light": ["dim"]}), None),
        (json.dumps({**SCENE, "light": " "}), None),
        (json.dumps({**SCENE, "light": "x" * (MOST_FIELD_CHARS + 1)}), None),
        ("[" * 100_000, None),
        ("A kite.", None),
    ],
)
def test_structured_captions_have_exactly_their_fields(answer: str, fields: dict[str, str] | None) -> None:
    assert parse_structured(answer) == fields


@pytest.mark.parametrize("name", ["default", "written", "A", "a.b", "", "x" * 33])
def test_names_of_variants_are_plain_and_no_other_captions(name: str) -> None:
    with pytest.raises(ValidationError, match=r"captions|name"):
        CaptionConfig(variants={name: "short"})


def test_a_prompt_that_is_none_is_refused_with_its_key(server: ChatServer) -> None:
    config = CaptionConfig.model_validate(captions(server, variants={"brief": "brief"}))
    with pytest.raises(UsageError, match=r"captions\.variants\.brief=brief is no prompt.*structured"):
        Captioner(config).check()
    config = CaptionConfig.model_validate(captions(server, variants={}, prompt="structured"))
    with pytest.raises(UsageError, match=r"captions\.prompt=structured is no prompt"):
        Captioner(config).check()


def test_a_model_of_this_machine_is_one_for_all_captions(films: Path, tmp_path: Path) -> None:
    model = tiny_vlm(tmp_path / "teller", says=(SENTENCE,))
    values = {"model": str(model), "short_side_px": 32, "max_new_tokens": 24, "variants": {"short": "short"}}
    run(films, values)
    assert {row["name"]: row["caption"] for row in table(films) if row["name"] != "written"} == {
        "short": SENTENCE
    }
    # Workers of Ray get the stages with one function, and so load one model.
    config = CurateConfig.model_validate({"captions": values})
    asked = {stage.name: stage for stage in model_stages(config)}
    assert list(asked) == ["captions", "captions.short"]
    ledger, judge = Ledger(open_storage(tmp_path / "ledger")), judge_of(config, asked.values())
    pairs = [(stage.clip_stage(ledger, {}, judge), stage) for stage in asked.values()]
    [(joined, _)] = join_stages(pairs)
    assert isinstance(joined, JoinedStage)
    first, second = pickle.loads(pickle.dumps(joined)).stages
    assert first.function is second.function
    assert second.prepare.func.__self__ is first.function


def test_a_structured_caption_of_a_long_clip_is_one_answer(tmp_path: Path, server: ChatServer) -> None:
    clip = write_video(tmp_path / "long.mp4", (100, 50)).read_bytes()
    values = captions(server, window_frames=50, min_window_frames=50, max_attempts=1)
    captioner = Captioner(CaptionConfig.model_validate(values))
    view = captioner.prepare(clip)
    answers = captioner.answer([view, replace(view, variant="parts")])
    plain, parts = (answer for answer in answers if isinstance(answer, Caption))
    assert (plain.text, plain.provenance["windows"]) == (" ".join([LONG] * 3), "0-50 50-100 100-150")
    assert (json.loads(parts.text), parts.provenance["windows"]) == (SCENE, "0-150")
    shown = [len(pictures(body)) for body in server.bodies if "JSON object" in prompt_of(body)]
    assert shown == [4]
    assert parts.provenance["frame_times_s"].split()[-1] > "4"  # of the last window, too


def test_a_list_of_captions_in_a_list_of_inputs_is_kept_whole(films: Path) -> None:
    (films / "raw/b.json").unlink()
    rows = [
        {"path": "raw/a.mp4", "caption": "A kite."},
        {"path": "raw/b.mp4", "caption": ["A boat.", "Water."]},
    ]
    (films / "films.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    config = CurateConfig.model_validate(
        {"run": {"runner": "sequential", "isolate": False}, "spans": {"min_clip_s": 1}}
    )
    curate([str(films / "films.jsonl")], str(films / "out"), config)
    dataset = open_dataset(films / "out")
    assert sorted(dataset.column("caption").to_pylist()) == ["A boat.", "A kite."]
    assert [(row["name"], row["number"], row["caption"], row["caption_source"]) for row in table(films)] == [
        ("written", 0, "A boat.", "input"),
        ("written", 1, "Water.", "input"),
    ]
    # Another second caption is another dataset.
    rows[1]["caption"] = ["A boat.", "A lake."]
    (films / "films.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(UsageError, match="--update"):
        curate([str(films / "films.jsonl")], str(films / "out"), config)
    curate([str(films / "films.jsonl")], str(films / "out"), config, update=True)
    assert [row["caption"] for row in table(films)] == ["A boat.", "A lake."]
    # A take-down leaves no word of the list.
    source = next(
        uri for uri in open_dataset(films / "out").column("source").to_pylist() if uri.endswith("b.mp4")
    )
    remove(open_storage(films / "out"), Removal(source=source, date="2026-11-30", reason="asked", samples=0))
    assert "captions" in open_dataset(films / "out").manifest.tables
    assert table(films) == []
    held = [path for path in (films / "out/.ledger").rglob("*") if path.is_file()]
    assert [path for path in held if b"A lake." in path.read_bytes()] == []
