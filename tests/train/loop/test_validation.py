"""Validation during training: it changes no bit of the run, and its videos are those of `reelweave sample`."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from reelweave.loader.errors import UsageError
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.loop.validation import Validation
from reelweave.train.models.build import build_tokenizer
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.sampling.cache.config import BlockCacheConfig
from reelweave.train.sampling.generate import generate
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import but, chosen, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop.validation_runs import (
    ALONE,
    CASES,
    CONTEXT,
    PROMPTS,
    SHARDED,
    compare,
    failing,
    raw,
    validation_config,
)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ranks, request):
    out = tmp_path_factory.mktemp("validation")
    ended = ranks.run(compare, 4, str(out), chosen(request, "name"))
    assert ended.codes == [0] * 4, ended.errors
    return out


ALWAYS = ("pp-fsdp",)
OFTEN = ("cascade",)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", but(ALWAYS, CASES, OFTEN))
def test_the_run_is_the_same_to_the_bit(runs, name):
    with_videos, without = (
        [(step["loss"], step["grad_norm"]) for step in lines(runs / name / kind / "metrics.jsonl")]
        for kind in ("with", "without")
    )
    assert len(with_videos) == 3
    assert with_videos == without
    weights = [
        load_trained(str(runs / name / kind), CPU, group)
        for kind in ("with", "without")
        for group in ("model", "ema")
    ]
    for one, other in zip(weights[:2], weights[2:], strict=True):
        for key, tensor in one.bundle.state_dict().items():
            assert torch.equal(tensor, other.bundle.state_dict()[key]), key


def made(folder, number):
    return (folder / f"{number:03d}.mp4").read_bytes()


@pytest.mark.parametrize("name", but(ALWAYS, CASES, OFTEN))
def test_its_videos_are_those_of_the_checkpoint(runs, name):
    """To the bit in the same layout, and in one process where a pass has its bits."""
    checkpoint = runs / name / "with" / "checkpoints" / "step-000002"
    videos = runs / name / "with/validation/step-000002"
    trained = load_trained(str(checkpoint), CPU)
    assert trained.weights == "ema"
    for number, prompt in enumerate(PROMPTS):
        config = validation_config(seed=7 + number)
        alone = generate(trained.bundle, trained.config.losses, config, [prompt])[0].numpy()
        found = np.frombuffer(made(videos, number), np.uint8).reshape(alone.shape)
        off = np.abs(found.astype(int) - alone)
        # Another order of sums, where ranks share a pass.
        assert off.max() <= (0 if name in ALONE else 1), prompt
        if name in CONTEXT:
            assert made(runs / name / "sampled", number) == found.tobytes()
        elif name in SHARDED:
            [file] = (runs / name / "sampled").glob(f"*{number:03d}.mp4")
            assert file.read_bytes() == found.tobytes()
            said = json.loads((runs / name / "rank-0.json").read_text())
            assert said["layout_reason"].startswith("--layout training: train.parallel of ")
            degrees = {key: degree for key, degree in CASES[name].parallel.items() if degree != "rest"}
            assert said["layout"].items() >= degrees.items()


@thorough
@pytest.mark.parametrize(
    ("layout", "size", "failed"),
    but([("fsdp", 2, 1)], [("fsdp", 2, 1), ("pp-fsdp", 4, 1), ("tp-ring", 4, 0)], ()),
)
def test_a_rank_that_fails_ends_all_in_words(ranks, tmp_path, layout, size, failed):
    ended = ranks.run(failing, size, str(tmp_path), layout, str(failed), grace_s=30)
    assert ended.codes == [1] * size
    assert "the disk is full" in ended.errors[failed]
    for rank in set(range(size)) - {failed}:
        assert f"rank {failed} was lost" in ended.errors[rank]
    assert not (tmp_path / "validation" / "step-000002").exists()


def train(out, config, validation, stored=None):
    return Trainer(config, ClipStream(), out, stored=stored, validation=validation).run()


def test_its_files_log_and_sheet(tmp_path):
    asked = Validation(validation_config(weights="model"), raw)
    train(tmp_path, tiny_config(4, every_steps=2, tensorboard=True), asked)
    folder = tmp_path / "validation"
    assert sorted(path.name for path in folder.iterdir()) == ["sheet.png", "step-000002", "step-000004"]
    record = json.loads((folder / "step-000004" / "validation.json").read_text())
    assert [(video["prompt"], video["file"]) for video in record["videos"]] == [
        (prompt, f"{number:03d}.mp4") for number, prompt in enumerate(PROMPTS)
    ]
    assert (record["step"], record["weights"], record["sample"]["seed"]) == (4, "model", 7)
    with Image.open(folder / "sheet.png") as sheet:
        assert sheet.size == (2 * 24 + 4, 3 * 16 + 2 * 4)  # a row for each prompt, a column for each step
    with Image.open(folder / "step-000002" / "001.png") as strip:
        assert strip.size == (3 * 24 + 2 * 4, 16)
    log = lines(tmp_path / "validation.jsonl")
    assert [(line["step"], line["videos"], line["failed"]) for line in log] == [(2, 3, 0), (4, 3, 0)]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard"), {"images": 0})
    events.Reload()
    assert [event.step for event in events.Images("validation/002")] == [2, 4]
    assert [event.step for event in events.Scalars("validation/seconds")] == [2, 4]


def test_a_resumed_run_makes_the_same_videos(tmp_path):
    asked = Validation(validation_config(every_steps=3), raw)
    config = tiny_config(3, every_steps=2).model_copy(update={"ema": EmaConfig()})
    train(tmp_path / "at once", config, asked)
    shorter = config.model_copy(update={"schedule": config.schedule.model_copy(update={"total_steps": 2})})
    train(tmp_path / "resumed", shorter, asked)
    train(tmp_path / "resumed", config, asked)
    once, resumed = (tmp_path / name / "validation" / "step-000003" for name in ("at once", "resumed"))
    for path in once.iterdir():
        assert path.read_bytes() == (resumed / path.name).read_bytes(), path.name


def test_encoders_that_training_needs_not_are_loaded_for_it(tmp_path):
    """Of a run with stored latents."""

    class Latents(ClipStream):
        def microbatch(self, step, slot=0):
            batch = super().microbatch(step, slot)
            latents = encoder.encode(batch.video_BCTHW)
            return replace(batch, video_BCTHW=batch.video_BCTHW[:, :, :0], latents_BCTHW=latents)

    config = tiny_config(2)
    encoder = build_tokenizer(config.tokenizer)
    asked = Validation(validation_config(), raw)
    stored = StoredEncoders(channels=encoder.channels)
    Trainer(config, Latents(), tmp_path / "stored", stored=stored, validation=asked).run()
    train(tmp_path / "pixels", config, asked)
    stored, pixels = (tmp_path / name / "validation/step-000002/000.mp4" for name in ("stored", "pixels"))
    assert stored.read_bytes() == pixels.read_bytes()


def test_what_cannot_be_sampled_is_said_when_the_run_starts(tmp_path):
    config = tiny_config(2)
    for update, said in (
        ({"weights": "ema"}, "keeps no average"),
        ({"frames": 4}, r"4 frames do not fit"),
    ):
        with pytest.raises(UsageError, match=said):
            train(tmp_path, config, Validation(validation_config(**update), raw))
    given = config.model_copy(update={"first_frames": FirstFramesConfig(dropout=0.0)})
    with pytest.raises(UsageError, match="needs first frames"):
        train(tmp_path, given, Validation(validation_config(), raw))
    for update, said in (
        (
            {"cache": BlockCacheConfig()},
            "no gate",
        ),  # its decisions would need ranks, and its error a reference
        ({"image_guidance": 2.0}, "needs a picture"),
    ):
        with pytest.raises(ValidationError, match=said):
            validation_config(**update)
    (tmp_path / "prompts.txt").write_text("a wave\n\n a cat \n", "utf-8-sig")
    rows = validation_config(prompts=tmp_path / "prompts.txt").rows()
    assert [row.prompt for row in rows] == ["a wave", "a cat"]
    (tmp_path / "prompts.jsonl").write_text(
        '{"prompt": "a\u2028wave"}\r\n{"prompt": "a\x85cat"}', "utf-8-sig"
    )
    rows = validation_config(prompts=tmp_path / "prompts.jsonl").rows()
    assert [row.prompt for row in rows] == ["a\u2028wave", "a\x85cat"]
    for content in (b"\n", b"\xff"):
        (tmp_path / "prompts.txt").write_bytes(content)
        with pytest.raises(UsageError, match=r"validation\.prompts"):
            validation_config(prompts=tmp_path / "prompts.txt").rows()
