"""Validation with pictures and by Wan's two experts: the videos of `reelweave sample`, and the run unchanged."""

import json

import pytest
import torch
from PIL import Image

from reelweave.loader.errors import UsageError
from reelweave.train.loop.validation_config import ValidationConfig
from reelweave.train.sampling.experts.loading import with_experts
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_trained
from tests.pipelines.sampling.sample_ranks import command
from tests.thorough import but, thorough
from tests.train.loop.validation_runs import validation_config
from tests.train.loop.wan_validation import run, sample
from tests.train.models.wan_pipelines import publish, transformer
from tests.train.ranks import Ranks

CPU = torch.device("cpu")
FSDP = {"dp_replicate": 1, "dp_shard": "rest"}
FORMS = {
    "2.2 A14B I2V": [{"prompt": "a wave", "image": "red.png"}, {"prompt": "a cat", "image": "blue.png"}],
    "2.2 A14B T2V": [{"prompt": "a wave"}],
    "2.2 TI2V 5B": [{"prompt": "a wave", "image": "red.png"}, {"prompt": "a wave"}],
}


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for name, colour in (("red", (200, 0, 0)), ("blue", (0, 0, 200))):
        Image.new("RGB", (40, 30), colour).save(folder / f"{name}.png")
    return folder


@pytest.fixture(scope="module")
def alike():
    """Ranks whose products are rounded alike: gathered weights lie elsewhere in memory, by which MKL rounds on AMD."""
    with Ranks(environment={"MKL_CBWR": "COMPATIBLE"}) as server:
        yield server


def videos(folder):
    return [path.read_bytes() for path in sorted((folder / "validation" / "step-000001").glob("*.mp4"))]


def run_alone(alike, out, *arguments):
    ended = alike.run(run, 1, str(out), *arguments)
    assert ended.codes == [0], ended.errors


def videos_of(alike, out, checkpoint, pictures, rows, other=None):
    """Videos of a run as `reelweave sample` makes them, in a process that rounds as the run's did."""
    out.mkdir()
    ended = alike.run(sample, 1, str(out), str(checkpoint), str(pictures), rows, other and str(other))
    assert ended.codes == [0], ended.errors
    return [path.read_bytes() for path in sorted(out.glob("*.raw"))]


def losses(folder):
    line = json.loads((folder / "metrics.jsonl").read_text())
    return line["loss"], line["grad_norm"]


@thorough
@pytest.mark.parametrize("form", but(["2.2 A14B I2V"], FORMS, ()))
def test_videos_are_those_of_the_checkpoint_on_one_rank_and_in_shards(alike, tmp_path, pictures, form):
    published, rows = publish(tmp_path / "wan", form), FORMS[form]
    common = (str(published), form, str(pictures))
    for name, prompts in (("with", rows), ("without", [])):
        run_alone(alike, tmp_path / name, *common, prompts, {}, {})
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    trained = with_experts(load_trained(str(tmp_path / "with"), CPU), CPU)
    assert (trained.experts is None) == (form == "2.2 TI2V 5B")
    expected = videos_of(alike, tmp_path / "one", tmp_path / "with", pictures, rows)
    assert videos(tmp_path / "with") == expected
    assert len(set(expected)) == len(rows)
    record = json.loads((tmp_path / "with/validation/step-000001/validation.json").read_text())
    assert [video["image"] and video["image"].rpartition("/")[2] for video in record["videos"]] == [
        row.get("image") for row in rows
    ]
    ended = alike.run(run, 2, str(tmp_path / "shards"), *common, rows, FSDP, {})
    assert ended.codes == [0, 0], ended.errors
    assert videos(tmp_path / "shards") == videos_of(
        alike, tmp_path / "two", tmp_path / "shards", pictures, rows
    )


@thorough
def test_the_command_samples_both_experts_in_shards(alike, tmp_path, pictures):
    form = "2.2 A14B I2V"
    published, rows = publish(tmp_path / "wan", form), FORMS[form]
    run(str(tmp_path / "run"), str(published), form, str(pictures), [], {}, {})
    prompts = pictures / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(row) for row in rows))
    words = [
        "--checkpoint",
        str(tmp_path / "run"),
        "--prompts",
        str(prompts),
        "--size",
        "16x16",
        "--frames",
        "5",
    ]
    words += ["--steps", "3", "--guidance", "3", "--seed", "7", "--layout"]
    ended = alike.run(command, 1, *words, "prompts", "--out", str(tmp_path / "whole"))
    assert ended.codes == [0], ended.errors
    ended = alike.run(command, 2, *words, "dp_shard=rest", "--out", str(tmp_path / "parts"))
    assert ended.codes == [0, 0], ended.errors
    whole, parts = (
        [path.read_bytes() for path in sorted((tmp_path / name).glob("*.mp4"))] for name in ("whole", "parts")
    )
    assert parts == whole
    assert len(set(parts)) == 2
    other = [row | {"size": size} for row, size in zip(rows, ("16x16", "16x32"), strict=True)]
    prompts.write_text("\n".join(json.dumps(row) for row in other))
    ended = alike.run(command, 2, *words, "dp_shard=rest", "--out", str(tmp_path / "sizes"))
    assert ended.codes == [2, 2], ended.errors
    assert "need videos of one size" in ended.errors[0]


@thorough
def test_the_other_expert_may_be_one_that_was_trained(alike, tmp_path, pictures):
    form, rows = "2.2 A14B T2V", FORMS["2.2 A14B T2V"]
    published = publish(tmp_path / "wan", form)
    common = (str(published), form, str(pictures))
    low = tmp_path / "low"
    run_alone(alike, low, *common, [], {}, {"subfolder": "transformer_2"})
    export(load_trained(str(low), CPU), low / "lora")
    for name, more in (
        ("plain", {}),
        ("lora", {"lora_2": str(low / "lora")}),
        ("run", {"checkpoint_2": str(low)}),
    ):
        run_alone(alike, tmp_path / name, *common, rows, {}, more)
    expected = videos_of(alike, tmp_path / "both", tmp_path / "run", pictures, rows, low)
    assert videos(tmp_path / "run") == videos(tmp_path / "lora") == expected
    assert videos(tmp_path / "plain") != expected
    export(load_trained(str(tmp_path / "run"), CPU), tmp_path / "own")
    with pytest.raises(UsageError, match=r"trained on transformer, and are given for transformer_2"):
        run(str(tmp_path / "wrong"), *common, rows, {}, {"lora_2": str(tmp_path / "own")})
    with pytest.raises(UsageError, match=r"take a run of .*, transformer_2"):
        run(str(tmp_path / "wrong"), *common, rows, {}, {"checkpoint_2": str(tmp_path / "plain")})


@thorough
def test_another_second_expert_is_refused_when_a_run_goes_on(tmp_path, pictures):
    form, rows = "2.2 A14B T2V", FORMS["2.2 A14B T2V"]
    published = publish(tmp_path / "wan", form)
    common = (str(published), form, str(pictures))
    run(str(tmp_path / "run"), *common, rows, {}, {})
    run(str(tmp_path / "run"), *common, rows, {}, {})
    transformer(5).save_pretrained(published / "transformer_2")
    with pytest.raises(UsageError, match=r"transformer_2/.*safetensors is another file .*other_expert"):
        run(str(tmp_path / "run"), *common, rows, {}, {})
    run(str(tmp_path / "run"), *common, [], {}, {})  # which samples nothing with it


def test_rows_of_a_file_have_pictures_beside_it(tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a wave", "image": "red.png"}\n\n{"prompt": "a cat"}\n')
    rows = validation_config(prompts=file).rows()
    assert [(row.prompt, row.image) for row in rows] == [("a wave", tmp_path / "red.png"), ("a cat", None)]
    with pytest.raises(UsageError, match="image_guidance needs a picture for every caption"):
        validation_config(prompts=file, image_guidance=2.0).rows()
    for line, said in (
        ('{"prompt": "a wave", "sed": 3}', "line 1: sed: Extra inputs"),
        ("[1]", "line 1: the line: Input should be"),
        ("{", "line 1: is no JSON"),
    ):
        file.write_text(line)
        with pytest.raises(UsageError, match=said):
            validation_config(prompts=file).rows()
    both = {"lora_2": "here", "checkpoint_2": "there"}
    with pytest.raises(ValueError, match="give one of them"):
        ValidationConfig.model_validate(validation_config().model_dump() | both)
