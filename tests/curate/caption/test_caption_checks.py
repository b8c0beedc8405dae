"""Checks of captions: what failing models write is found, what good ones write passes."""

import pytest

from reelweave.curate.caption.checks import faults
from reelweave.curate.caption.models.backend import draft
from reelweave.curate.caption.models.cleaning import without_echo
from reelweave.curate.caption.prompts import PROMPTS

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


def test_a_caption_that_ran_out_of_tokens_is_truncated_even_at_the_end_of_a_sentence() -> None:
    for text in ("A man walks along the", "A man walks along the quay.”"):
        assert faults(text, stopped=False, min_words=3, max_chars=4000) == ("truncated",)
        assert faults(text, stopped=True, min_words=3, max_chars=4000) == ()


def test_a_caption_that_a_filter_of_the_server_ended_is_no_caption() -> None:
    text = "A man walks along the quay."
    assert faults(text, stopped=True, min_words=3, max_chars=4000, filtered=True) == ("filtered",)


def test_a_caption_beyond_the_limit_is_long() -> None:
    assert faults("A man walks along the quay.", stopped=True, min_words=3, max_chars=20) == ("long",)


ORDINARY = [
    "Unfortunately for the goalkeeper, the ball slips through his gloves and rolls over the line.",
    "A hiker unfortunately drops his bottle, which rolls down the slope towards the camera.",
    "An error message fills the blue screen while a man in a suit types on the keyboard.",
    "A judge raises a card: the gymnast has made an error on the beam and bows.",
    'The terminal shows "Error: CUDA out of memory" in red letters, and a hand closes the laptop.',
    "An error occurred message appears on the cash machine, and the woman takes her card.",
    "A shop assistant folds shirts behind a counter while customers walk past the window.",
    "The assistant referee raises the flag; the players in white turn around and protest.",
    "Assistant chefs carry trays of bread through a kitchen filled with steam.",
    "A boy sits with his chin on his hand and seems to think before he moves the white bishop.",
    "Two men think hard over a chessboard in a park; leaves fall on the table.",
    'A girl with a sad face holds up a card that says "Sorry" in hand-written letters.',
    "Sorry faces fill the stands after the final whistle as rain begins to fall.",
    "A man in a suit says that he is sorry and cannot stay; she closes the door.",
    "The letter I stands in white on a blue wall, and a painter adds a dot above it.",
    "A vintage tank, a Mark I, rolls over a trench while soldiers walk beside it.",
    "The dog cannot reach the ball on the shelf and jumps again and again.",
    "A toddler cannot open the jar, so his mother helps him with a smile.",
    "The driver can't see the road in the thick fog and stops at the kerb.",
    "Subtitles read “I cannot help you any more” as the actress walks away.",
    "A subtitle says \"I'm sorry, but I can't describe it\" while the old man looks at the sea.",
    "A user interface with three columns scrolls while a cursor opens a menu called Assistant.",
    "Human figures in chalk cover the pavement. A child adds another one.",
    "A human hand and a robot arm meet over a table. The assistant steps back.",
    "The system of pulleys lifts a crate, and two workers guide it to the ground.",
    "A sign reads: Please provide your ticket. Travellers queue at the gate.",
    "A video camera on a tripod films a couple dancing on the beach at sunset.",
    "The image of a lighthouse appears on a canvas as the painter works on it.",
    "The video shows a woman who pours tea into a cup and places it on a tray.",
    "The frames of the windows are painted blue, and curtains move behind them.",
    "There are no people on the platform; a train passes without stopping.",
    "The content of the box spills over the floor, and a cat inspects it.",
    "A clip is fastened to a stack of paper, then a hand slides it into a folder.",
    "The request stop is empty; a bus passes it without slowing down.",
    "An answer is written on the blackboard, and the pupils copy it into their books.",
    "A caption at the bottom names the speaker, who points to a map of the coast.",
    "Description boards line the path, and visitors read them one by one.",
    "Here is a harbour at dawn: boats rock, gulls circle, and a man mends his nets.",
    "Sure-footed goats climb a steep wall of rock while the camera tilts up.",
    'The screen displays code between braces, {"caption": 1}, and a hand points at it.',
    "As an old man feeds pigeons, a girl runs through them and they fly up.",
    "It seems to rain; people open umbrellas and hurry across the square.",
    "A flag is rejected by the inspector, who throws it into a bin.",
    "Someone in a red jacket apologizes with a bow, and the crowd applauds.",
    "一位助手把文件递给医生，他们无法进入房间，只好在走廊等待。",  # noqa: RUF001
    "Ein Kind kann die Tür leider nicht öffnen und ruft seinen Vater.",
    "Un hombre lamenta no poder entrar; la puerta está cerrada y llueve.",
]


@pytest.mark.parametrize("text", ORDINARY)
def test_words_of_refusals_and_errors_in_ordinary_use_pass(text: str) -> None:
    answer = draft(text, True, 0, 0)
    assert answer.text == text
    assert faults(text, stopped=True, min_words=3, max_chars=4000, question=PROMPTS["default"]) == ()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I apologize, but I am not able to provide a description of this content.", "refusal"),
        ("Unfortunately, I cannot view the video. Please describe it to me in words.", "refusal"),
        ("Unfortunately, the images provided are blank, so I am unable to describe the video.", "refusal"),
        ("Unfortunately, the images provided are blank.", "refusal"),
        ("The image you have provided cannot be loaded, so no description can be given.", "refusal"),
        ("你好，很抱歉，我无法查看视频内容。请提供更多信息。", "refusal"),  # noqa: RUF001
        ("对不起，作为一个语言模型，我无法观看视频。", "refusal"),  # noqa: RUF001
        ("I do not have the ability to view videos, so I cannot describe this one.", "refusal"),
        ("It seems that no images were attached to your message.", "refusal"),
        ("Sorry, the video can't be described because the frames are missing.", "refusal"),
        ("This content may violate our usage policies and cannot be described.", "refusal"),
        ("There are no frames to describe in this message.", "refusal"),
        ("I must decline to describe the people in these frames.", "refusal"),
        ("A texture drifts past. (Note: this is a placeholder, as I cannot view videos.)", "refusal"),
        ("Error: CUDA out of memory while processing request. Please try again later.", "error"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "error"),
        ("Your request was flagged by our content filter. Please modify your prompt.", "error"),
        ("Internal Server Error, please come back later.", "error"),
        ("An error occurred while processing your request.", "error"),
        ("<think>Okay, the user wants a caption. I look at the frames and see noise.", "thoughts"),
        ("A texture drifts past a patch. <answer> It turns left.", "thoughts"),
        (
            "system\nYou are a helpful assistant.\nuser\nDescribe it.\nassistant\nA texture drifts.",
            "conversation",
        ),
        ("Human: Describe the video.\n\nAssistant: A texture drifts past a patch.", "conversation"),
        ("A texture drifts.\n\nHuman: describe the next one\n\nAssistant: A dog runs.", "conversation"),
        ("A texture drifts. " + PROMPTS["default"], "echo"),
        ("Describe this video in one paragraph of three to five sentences. A texture drifts.", "echo"),
    ],
)
def test_answers_that_are_no_captions_are_found(text: str, fault: str) -> None:
    answer = draft(text, True, 0, 0)
    assert fault in faults(answer.text, True, 3, 4000, question=PROMPTS["default"])


DRIFTS = "A texture drifts slowly past a square patch."


@pytest.mark.parametrize(
    "text",
    [
        f"<think>Noise.</think>\n\n{DRIFTS}",
        f"Okay, noise.\n</think>\n\n{DRIFTS}",
        f"<thinking>Noise, drifting.</thinking> {DRIFTS}",
        f"\u25c1think\u25b7Noise, drifting.\u25c1/think\u25b7{DRIFTS}",
        f"<answer>{DRIFTS}</answer>",
        f"<think>Noise.</think><answer>{DRIFTS}</answer>",
        f"<answer>{DRIFTS}",
        f'```json\n{{"caption": "{DRIFTS}"}}\n```',
        f'{{"description": "{DRIFTS}"}}',
        f"```\n{DRIFTS}\n```",
        f"**Caption:** {DRIFTS}",
        f"**Caption**: {DRIFTS}",
        f"Caption: {DRIFTS}",
        f"### Description:\n{DRIFTS}",
        f"## Description\n\n{DRIFTS}",
        f'Sure! Here is a caption for the video: "{DRIFTS}"',
        f"Here's a short description of the video:\n\n{DRIFTS}",
        f"Certainly! Here is the caption:\n\n**Caption:** {DRIFTS}",
    ],
)
def test_what_stands_around_a_caption_is_left_out(text: str) -> None:
    assert draft(text, True, 0, 0).text == DRIFTS


def test_a_question_in_front_of_the_caption_is_left_out() -> None:
    echoed = draft(f"{PROMPTS['default']}\n{DRIFTS}", True, 0, 0).text
    assert without_echo(echoed, PROMPTS["default"]) == DRIFTS
    assert without_echo(DRIFTS, PROMPTS["default"]) == DRIFTS
