"""Captions by real transformers models, tiny ones built on disk, through the code that runs large ones."""

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from reelweave.curate.caption import Caption, CaptionConfig, Captioner, availability
from reelweave.curate.caption.captioner import shorten_text
from reelweave.curate.caption.models.backend import Ask, Draft
from reelweave.curate.caption.prompts import PROMPTS, prompt_text, sha256
from reelweave.curate.caption.windows import CaptionWindow, pictures_of, windows
from reelweave.curate.ledger.records import Record
from reelweave.curate.models.clip_frames import Fault
from reelweave.curate.run.stages.caption_stage import CaptionClips
from reelweave.curate.source_pass.tasks import ClipTask
from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig
from tests.media import write_video
from tests.thorough import beyond
from tests.tiny_vlm import tiny_vlm, tiny_writer

FIRST = "a red kite flies over the sea ."
SECOND = "two people walk along the street ."


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_video(tmp_path_factory.mktemp("clip") / "a.mp4", (50,)).read_bytes()


@pytest.fixture(scope="module")
def long_clip(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_video(tmp_path_factory.mktemp("clip") / "a.mp4", (100, 50)).read_bytes()


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vlm(tmp_path_factory.mktemp("vlm") / "teller", says=(FIRST, SECOND))


def settings(model: Path, **more: object) -> CaptionConfig:
    return CaptionConfig(**{"model": str(model), "short_side_px": 32, "max_new_tokens": 24, **more})


@pytest.mark.parametrize("kind", beyond(3, ["qwen3_vl", "smolvlm", "llava", "qwen2_vl", "qwen2_5_vl"]))
def test_families_of_models_caption_a_clip(kind: str, tmp_path: Path, clip: bytes) -> None:
    model = tiny_vlm(tmp_path / "model", kind=kind, says=(FIRST,))
    captioner = Captioner(settings(model))
    captioner.check()
    (found,) = captioner([clip])
    assert isinstance(found, Caption)
    assert (found.text, found.source) == (FIRST, "model:model")


def test_loading_a_model_prints_nothing(teller: Path, clip: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    captioner = Captioner(settings(teller))
    captioner.check()
    captioner([clip])
    assert capfd.readouterr() == ("", "")


def test_a_caption_by_a_model_names_the_sidecar_that_gave_none(
    teller: Path, clip: bytes, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"text": "A boat."}')
    config = settings(teller)
    clips = CaptionClips(config, StorageConfig(), Captioner(config))
    task = ClipTask(Record(str(tmp_path / "a.mp4")))
    (found,) = clips([task], lambda task: clips.prepare(task, lambda _: clip))
    assert isinstance(found, Caption)
    assert found.text == FIRST
    assert found.provenance["unused_sidecar"] == 'unused:a.json (JSON without the key "caption")'


def test_the_words_depend_on_the_pictures(tmp_path: Path, clip: bytes) -> None:
    other = write_video(tmp_path / "b.mp4", (50,), first_scene=5).read_bytes()
    model = tiny_vlm(tmp_path / "model")
    captioner = Captioner(settings(model, checks=False))
    first, second, again = captioner([clip, other, clip])
    assert isinstance(first, Caption)
    assert isinstance(second, Caption)
    assert first.text == again.text != second.text


def test_provenance_says_how_the_caption_came_about(teller: Path, long_clip: bytes) -> None:
    (found,) = Captioner(settings(teller, window_frames=60, min_window_frames=20, seed=7))([long_clip])
    assert isinstance(found, Caption)
    said = found.provenance
    assert found.text == " ".join([FIRST] * 3)
    assert said["windows"] == "0-60 60-120 120-150"
    assert said["frame_times_s"].split()[:3] == ["0", "0.48", "1"]
    assert (said["seed"], said["attempts"], said["prompt"]) == ("7 7 7", "1 1 1", "default")
    assert said["prompt_sha256"] == sha256(PROMPTS["default"])
    assert said["model"] == "teller"
    assert len(said["weights_sha256"]) == len(said["config_sha256"]) == 64
    assert int(said["tokens_out"]) == 3 * len(FIRST.split())
    assert int(said["tokens_in"]) > 0
    assert said["runtime"].startswith("transformers ")


def test_one_clip_that_cannot_be_read_costs_no_other(teller: Path, clip: bytes) -> None:
    broken, good = Captioner(settings(teller))([b"no video", clip])
    assert isinstance(broken, Fault)
    assert isinstance(good, Caption)


class Answering:
    """A model that gives prepared answers and remembers what it was asked."""

    def __init__(self, *rounds: Sequence[str]) -> None:
        self.rounds = list(rounds)
        self.asked: list[list[Ask]] = []

    def check(self) -> None: ...

    def identity(self) -> Mapping[str, str]:
        return {"model": "answering"}

    def __call__(self, asks: Sequence[Ask]) -> list[Draft | Fault]:
        self.asked.append(list(asks))
        return [Draft(text, bool(text) and text[-1] == ".", 10, 3) for text in self.rounds.pop(0)]


def test_only_failed_captions_are_asked_again_and_each_time_differently(tmp_path: Path, clip: bytes) -> None:
    model = Answering(
        ["A red kite flies over the sea.", "", "A red kite flies over the"], ["", "Two people walk on."]
    )
    model.rounds.append(["A boat lies on the lake."])
    found = Captioner(settings(tmp_path), model=model)([clip] * 3)
    assert [one.text for one in found if isinstance(one, Caption)] == [
        "A red kite flies over the sea.",
        "A boat lies on the lake.",
        "Two people walk on.",
    ]
    assert [len(asks) for asks in model.asked] == [3, 2, 1]
    first, second, third = model.asked
    assert [ask.seed for ask in (first[1], second[0], third[0])] == [0, 1, 2]
    assert [ask.temperature for ask in (first[1], second[0], third[0])] == [0.0, 0.7, 0.7]
    assert second[1].max_new_tokens == 2 * first[2].max_new_tokens
    assert isinstance(found[1], Caption)
    assert found[1].provenance["attempts"] == "3"
    assert found[1].provenance["tokens_in"] == "30"


def test_a_caption_that_never_gets_good_is_a_fault_that_says_why(tmp_path: Path, clip: bytes) -> None:
    model = Answering([""], ["I'm sorry, but I can't help with that."])
    (found,) = Captioner(settings(tmp_path, max_attempts=2), model=model)([clip])
    assert isinstance(found, Fault)
    assert "2 attempts" in found.reason
    assert "it refused" in found.reason
    assert "I'm sorry" in found.reason


def test_asking_again_draws_from_the_real_model(tmp_path: Path, clip: bytes) -> None:
    """What this model most likely says is too short; a draw may give the other."""
    model = tiny_vlm(tmp_path / "model", says=("kite", SECOND))
    captioner = Captioner(settings(model, max_attempts=8))
    first, again = captioner([clip]), captioner([clip])
    assert first == again
    (found,) = first
    assert isinstance(found, Caption)
    assert found.text == SECOND
    assert int(found.provenance["attempts"]) > 1


def test_a_second_model_rewrites(tmp_path: Path, teller: Path, clip: bytes) -> None:
    for chat in (True, False):
        writer = tiny_writer(tmp_path / f"writer-{chat}", chat=chat, says=(SECOND,) if chat else (), seed=3)
        config = settings(teller, rewrite_model=str(writer), checks=chat)
        captioner = Captioner(config)
        captioner.check()
        (found,) = captioner([clip])
        assert isinstance(found, Caption)
        assert found.text != FIRST
        if chat:
            assert found.text == SECOND
        assert found.provenance["rewrite_model"] == writer.name
        assert found.provenance["model"] == "teller"


def test_a_captioner_travels_without_its_weights(teller: Path, clip: bytes) -> None:
    captioner = Captioner(settings(teller))
    before = captioner([clip])
    data = pickle.dumps(captioner)
    assert len(data) < 10_000
    assert pickle.loads(data)([clip]) == before


def test_models_that_cannot_caption_are_refused_in_words(tmp_path: Path, teller: Path) -> None:
    writer = tiny_writer(tmp_path / "writer")
    empty = tmp_path / "empty"
    empty.mkdir()
    bare = tiny_vlm(tmp_path / "bare")
    (bare / "chat_template.jinja").unlink()
    weightless = tiny_vlm(tmp_path / "weightless")
    (weightless / "model.safetensors").unlink()
    for model, said in (
        (writer, "does not caption pictures"),
        (empty, "holds no config.json"),
        (bare, "no chat template"),
        (weightless, "holds no weights"),
    ):
        with pytest.raises(UsageError, match=said):
            Captioner(settings(model)).check()
    with pytest.raises(UsageError, match="writes no text"):
        Captioner(settings(teller, rewrite_model=str(teller))).check()
    with pytest.raises(UsageError, match=r"captions\.prompt=poetic is no prompt"):
        Captioner(settings(teller, prompt="poetic")).check()


def test_weights_that_are_torn_are_refused_in_words(tmp_path: Path, clip: bytes) -> None:
    model = tiny_vlm(tmp_path / "model")
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(UsageError, match=r"captions\.model=.*cannot be loaded"):
        Captioner(settings(model))([clip])


def test_vllm_is_asked_for_in_words_where_it_is_missing(teller: Path) -> None:
    pytest.importorskip("transformers")
    try:
        import vllm  # noqa: F401
    except ImportError:
        with pytest.raises(UsageError, match="needs vLLM"):
            Captioner(settings(teller, backend="vllm")).check()


def test_a_question_too_long_for_the_model_is_a_fault(teller: Path, clip: bytes) -> None:
    (found,) = Captioner(settings(teller, max_new_tokens=32768))([clip])
    assert isinstance(found, Fault)
    assert "the model takes 2048 tokens" in found.reason


def test_without_a_model_people_are_told_once() -> None:
    assert availability(CaptionConfig(model="folder")) is None
    assert "captions.model" in str(availability(CaptionConfig()))


@pytest.mark.parametrize(
    ("frames", "expected"),
    [
        (1, [(0, 1)]),
        (256, [(0, 256)]),
        (383, [(0, 383)]),
        (384, [(0, 256), (256, 384)]),
        (700, [(0, 256), (256, 512), (512, 700)]),
        (600, [(0, 256), (256, 600)]),
    ],
)
def test_windows_cover_a_clip_once(frames: int, expected: list[tuple[int, int]]) -> None:
    assert windows(frames, 256, 128) == [CaptionWindow(*part) for part in expected]


def test_every_window_has_a_picture() -> None:
    parts = [CaptionWindow(0, 10), CaptionWindow(10, 12), CaptionWindow(12, 40)]
    assert pictures_of(parts, 25, [0.0, 0.5, 1.0]) == [[0], [0], [1, 2]]


def test_captions_shorten_at_the_end_of_a_sentence() -> None:
    assert shorten_text("One two. Three four. Five.", 21) == "One two. Three four."
    assert shorten_text("One two three", 9) == "One two"
    assert shorten_text("Short.", 9) == "Short."


def test_a_prompt_is_a_variant_or_a_sentence() -> None:
    assert prompt_text("short") == PROMPTS["short"]
    assert prompt_text("What do you see?") == "What do you see?"
    assert prompt_text("描述这个视频") == "描述这个视频"
