"""Checks of captions: what failing models write is found, what good ones write passes."""

import pytest

from reelweave.curate.caption.checks import faults

GOOD = [
    "A woman in a red coat walks along the harbour while gulls circle above the boats.",
    "Two dogs run. They stop. They run again. The camera follows them to the water.",
    "A sign reads “I can't see you” while people pass by. The camera tilts up.",
    "The scoreboard shows 0 0 0 0 0 0 0 0 and the crowd waits.",
    "The man says he is sorry, and she turns away. Rain falls on the window.",
    "一个穿红色外套的女人沿着港口行走，海鸥在船只上空盘旋。",  # noqa: RUF001
    "Две собаки бегут по пляжу, и камера следует за ними до самой воды.",
    "एक औरत लाल कोट पहनकर बंदरगाह के किनारे चल रही है।",
    "A very, very, very long train passes the station at dusk.",
]


@pytest.mark.parametrize("text", GOOD)
def test_good_captions_pass(text: str) -> None:
    assert faults(text, stopped=True, min_words=3, max_chars=4000) == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        (".", "empty"),
        ("!!!!!!!!", "garbled"),
        ("A boat <|im_end|> on the lake in the evening.", "garbled"),
        ("A boat \ufffd\ufffd\ufffd\ufffd on a lake.", "garbled"),
        ("A boat.", "short"),
        ("I'm sorry, but I can't describe this video.", "refusal"),
        ("I’m sorry, I cannot help with that request.", "refusal"),  # noqa: RUF001
        ("As an AI language model, I have no eyes to see the film with.", "refusal"),
        ("I cannot view the video. Please upload it again so that I may help.", "refusal"),
        ("There is no video provided, so nothing can be said about it.", "refusal"),
        ("抱歉，我无法描述这个视频的内容。", "refusal"),  # noqa: RUF001
        ("Lo siento, pero no puedo describir este video.", "refusal"),
        ("Извините, но я не могу описать это видео.", "refusal"),
        ("The boat the boat the boat the boat the boat the boat moves.", "repetition"),
        ("A man walks. " * 12, "repetition"),
        (
            "Frame 1: a boat. Frame 2: a boat. Frame 3: a boat. Frame 4: a boat. Frame 5: a boat.",
            "repetition",
        ),
        ("船在湖上船在湖上船在湖上船在湖上船在湖上船在湖上", "repetition"),
    ],
)
def test_failures_are_found(text: str, fault: str) -> None:
    assert fault in faults(text, stopped=True, min_words=3, max_chars=4000)


def test_a_caption_that_ran_out_of_tokens_is_truncated_unless_its_sentence_ended() -> None:
    assert faults("A man walks along the", stopped=False, min_words=3, max_chars=4000) == ("truncated",)
    assert faults("A man walks along the quay.”", stopped=False, min_words=3, max_chars=4000) == ()
    assert faults("A man walks along the", stopped=True, min_words=3, max_chars=4000) == ()


def test_a_caption_beyond_the_limit_is_long() -> None:
    assert faults("A man walks along the quay.", stopped=True, min_words=3, max_chars=20) == ("long",)
