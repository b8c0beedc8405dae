"""Captions from a server that speaks OpenAI's chat protocol, a real one on loopback."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from reelweave.curate.caption import Caption, CaptionConfig, Captioner
from reelweave.curate.caption.captioner import CaptionInput
from reelweave.curate.caption.models import endpoint
from reelweave.curate.caption.models.endpoint import KEY_VARIABLE
from reelweave.curate.models.clip_frames import Fault, clip_pictures
from reelweave.curate.run.curate import curate
from reelweave.loader.dataset import open_dataset
from reelweave.loader.errors import RunError, UsageError
from tests.chat_server import ChatServer, chat_server, pictures
from tests.curate.run.test_run import config
from tests.media import write_video

KITE = "A red kite flies over the sea."


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with chat_server() as served:
        yield served


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("clips")
    return [write_video(folder / f"{n}.mp4", (50,), first_scene=n).read_bytes() for n in (0, 5)]


def settings(server: ChatServer, **more: object) -> CaptionConfig:
    given = {"model": "teller", "backend": "endpoint", "endpoint_url": server.url, "endpoint_timeout_s": 60}
    return CaptionConfig(**{**given, "short_side_px": 64, **more})


def test_the_server_sees_the_pictures_and_its_words_become_captions(
    server: ChatServer, clips: list[bytes]
) -> None:
    server.caption = lambda seen: (
        f"The picture is about {seen[0].mean():.0f} bright and {len(seen)} are shown."
    )
    captioner = Captioner(settings(server, seed=7, prompt="short"))
    captioner.check()
    found = captioner([clips[0], b"no video", clips[1]])
    assert isinstance(found[1], Fault)
    for caption, clip in ((found[0], clips[0]), (found[2], clips[1])):
        shown = clip_pictures(clip, fps=2.0, size=64)[0]
        assert isinstance(caption, Caption)
        assert caption.text.endswith(f"and {len(shown)} are shown.")
        sent = next(
            body for body in server.bodies if np.isclose(pictures(body)[0].mean(), shown[0].mean(), atol=1)
        )
        assert [one.shape for one in pictures(sent)] == [one.shape for one in shown]
        assert (sent["model"], sent["seed"], sent["temperature"]) == ("teller", 7, 0.0)
        assert sent["messages"][0]["content"][-1]["text"].startswith("Describe this video in one sentence")
        assert caption.source == "model:teller"
        assert caption.provenance["runtime"] == "endpoint"
        assert caption.provenance["tokens_in"] == "100"


def test_questions_are_in_flight_together(server: ChatServer, clips: list[bytes]) -> None:
    server.pause_s = 0.3
    found = Captioner(settings(server, batch_clips=6))([clips[0]] * 6)
    assert [one.text for one in found if isinstance(one, Caption)] == [KITE] * 6
    assert 2 <= server.most <= 6


def test_a_caption_that_was_cut_off_is_asked_for_again_with_more_tokens(
    server: ChatServer, clips: list[bytes]
) -> None:
    (found,) = Captioner(settings(server, max_new_tokens=4))(clips[:1])
    assert isinstance(found, Caption)
    assert (found.text, found.provenance["attempts"]) == (KITE, "2")
    assert [body["max_tokens"] for body in server.bodies] == [4, 8]
    assert [body["seed"] for body in server.bodies] == [0, 1]


def test_a_server_that_is_busy_or_breaks_off_is_asked_again(server: ChatServer, clips: list[bytes]) -> None:
    server.fails = [(503, b"loading"), (0, b""), (429, b"{}")]
    (found,) = Captioner(settings(server))(clips[:1])
    assert isinstance(found, Caption)
    assert (found.text, found.provenance["attempts"]) == (KITE, "1")
    assert len(server.bodies) == 4


def test_a_question_that_the_server_refuses_costs_no_other(server: ChatServer, clips: list[bytes]) -> None:
    server.fails = [(400, json.dumps({"error": {"message": "too many\nimages"}}).encode())]
    first, second = Captioner(settings(server, batch_clips=1))(clips)
    assert isinstance(first, Fault)
    assert first.reason == "the model does not take the question: too many images"
    assert isinstance(second, Caption)


NO_COMPLETIONS = [
    b'{"error": {"message": "CUDA out of memory", "code": 500}}',
    b"<html>",
    b"{}",
    b'{"choices": []}',
    b'{"choices": [{"message": "x"}]}',
    b'{"choices": [{"message": {"content": "A kite."}}], "usage": "many"}',
    b"[" * 100_000,
    b"null",
]


@pytest.mark.parametrize("answer", NO_COMPLETIONS)
def test_a_server_without_any_completion_ends_the_run_in_words(
    answer: bytes, server: ChatServer, clips: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_PAUSE_S", 0.0)
    server.fails = [(200, answer)] * 100
    with pytest.raises(RunError, match=r"no chat completion \(.*run the same command again"):
        Captioner(settings(server))(clips[:1])


@pytest.mark.parametrize("answer", NO_COMPLETIONS[:1])
def test_an_answer_that_is_no_completion_is_asked_for_again(
    answer: bytes, server: ChatServer, clips: list[bytes]
) -> None:
    server.fails = [(200, answer)] * 2
    (caption,) = Captioner(settings(server))(clips[:1])
    assert isinstance(caption, Caption)
    assert (caption.text, len(server.bodies)) == (KITE, 3)


@pytest.mark.parametrize("answer", NO_COMPLETIONS[:4])
def test_a_clip_that_gets_no_completion_costs_no_other(
    answer: bytes, server: ChatServer, clips: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "_PAUSE_S", 0.0)
    bright = clip_pictures(clips[0], fps=2.0, size=64)[0][0].mean()
    server.caption = lambda seen: answer if abs(seen[0].mean() - bright) < 1 else KITE
    first, second = Captioner(settings(server))(clips)
    assert isinstance(first, Fault)
    assert first.reason.startswith("the server gave no chat completion in 3 attempts: ")
    assert isinstance(second, Caption)
    assert isinstance(
        Captioner(settings(server))(clips[:1])[0], Fault
    )  # nor a run in which it is the only one


def test_an_answer_in_parts_is_read(server: ChatServer, clips: list[bytes]) -> None:
    parts = [
        {"type": "thinking", "thinking": "A kite, it seems."},
        {"type": "text", "text": "A red kite "},
        {"type": "text", "text": "flies over the sea."},
    ]
    answer = json.dumps({"choices": [{"message": {"content": parts}, "finish_reason": "stop"}]}).encode()
    server.caption = lambda _: answer
    (caption,) = Captioner(settings(server))(clips[:1])
    assert isinstance(caption, Caption)
    assert caption.text == KITE


def test_an_answer_that_the_servers_filter_ended_is_no_caption(
    server: ChatServer, clips: list[bytes]
) -> None:
    choice = {"message": {"content": "A red kite flies over"}, "finish_reason": "content_filter"}
    server.caption = lambda _: json.dumps({"choices": [choice]}).encode()
    (fault,) = Captioner(settings(server))(clips[:1])
    assert isinstance(fault, Fault)
    assert "a filter of the server ended it" in fault.reason


def test_a_question_that_the_server_repeats_is_left_out(server: ChatServer, clips: list[bytes]) -> None:
    server.caption = lambda _: f"{server.bodies[-1]['messages'][0]['content'][-1]['text']}\n{KITE}"
    (caption,) = Captioner(settings(server))(clips[:1])
    assert isinstance(caption, Caption)
    assert caption.text == KITE


def test_a_server_that_stays_away_ends_the_run_in_words(server: ChatServer, clips: list[bytes]) -> None:
    server.fails = [(503, b"")] * 100
    with pytest.raises(RunError, match=r"the endpoint http://127\.0\.0\.1:\d+/v1: it answers with HTTP 503"):
        Captioner(settings(server, endpoint_timeout_s=1))(clips[:1])


def test_the_key_comes_from_the_environment_and_is_never_shown(
    server: ChatServer, clips: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = "s3cret"
    with pytest.raises(UsageError, match=KEY_VARIABLE):
        Captioner(settings(server)).check()
    monkeypatch.setenv(KEY_VARIABLE, "wrong-one")
    with pytest.raises(RunError, match=KEY_VARIABLE) as raised:
        Captioner(settings(server))(clips[:1])
    assert "wrong-one" not in str(raised.value)
    monkeypatch.setenv(KEY_VARIABLE, "s3cret")
    captioner = Captioner(settings(server))
    captioner.check()
    (found,) = captioner(clips[:1])
    assert isinstance(found, Caption)
    assert "s3cret" not in str(found)


def test_what_is_wrong_with_the_address_or_the_name_is_said_before_the_run(server: ChatServer) -> None:
    with pytest.raises(UsageError, match=r"captions\.model=other is not served at .*; it serves teller"):
        Captioner(settings(server, model="other")).check()
    with pytest.raises(UsageError, match=r"captions\.endpoint_url=http://127\.0\.0\.1:9/v1 does not answer"):
        Captioner(settings(server, endpoint_url="http://127.0.0.1:9/v1")).check()
    for status in (400, 500):
        server.lists = status
        with pytest.raises(UsageError, match=r"captions\.endpoint_url=http://127"):
            Captioner(settings(server)).check()
    with pytest.raises(ValidationError, match="backend=endpoint needs endpoint_url"):
        CaptionConfig(model="teller", backend="endpoint")
    for url in ("host:8000", "http://user:secret@host/v1", "http://host/v1?key=secret"):
        with pytest.raises(ValidationError, match=r"http|leave out") as raised:
            CaptionConfig(endpoint_url=url)
        assert "secret" not in str(raised.value)


def test_a_run_keeps_its_captions_when_the_server_moves(tmp_path: Path, server: ChatServer) -> None:
    write_video(tmp_path / "raw/a.mp4", (50, 60))

    def run(url: str) -> list[str]:
        captions = {"model": "teller", "backend": "endpoint", "endpoint_url": url, "short_side_px": 64}
        curate([str(tmp_path / "raw")], str(tmp_path / "ds"), config(captions=captions), update=True)
        index = open_dataset(str(tmp_path / "ds")).index
        assert set(index["caption_source"].to_pylist()) == {"model:teller"}
        return index["caption"].to_pylist()

    first = run(server.url)
    assert first == [KITE] * len(first)
    asked = len(server.bodies)
    with chat_server() as other:
        assert run(other.url) == first
        assert other.bodies == []
    assert len(server.bodies) == asked


def test_an_answer_that_fails_is_asked_for_again_while_others_are_open(
    server: ChatServer, clips: list[bytes]
) -> None:
    """No question waits for the slowest one of its call."""
    slow, lock = threading.Event(), threading.Lock()
    seeds: list[int] = []

    def reply(body: dict[str, Any]) -> str:
        with lock:
            seeds.append(body["seed"])
            nth = len(seeds)
        if nth == 1:
            assert slow.wait(30), "the other question was not asked again meanwhile"
        if body["seed"] == 1:
            slow.set()
        return "" if nth == 2 else KITE

    server.reply = reply
    captioner = Captioner(settings(server, batch_clips=2))
    view = captioner.prepare(clips[0])
    assert isinstance(view, CaptionInput)
    assert len(view.pictures) == 0  # a server gets files, which are much smaller
    assert view.files[0].startswith(b"\xff\xd8")
    found = captioner.answer([view, view])
    assert [one.text for one in found if isinstance(one, Caption)] == [KITE] * 2
    assert sorted(seeds) == [0, 0, 1]
