"""Files of frozen parts that are replaced between two starts of a run are named, and refused or accepted."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from reelweave.loader.base.strict_json import SEAL, digest
from reelweave.loader.errors import UsageError
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.run import TrainConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import beyond, thorough
from tests.train.clips import ClipStream, tiny_config
from tests.train.published import publish, publish_text
from tests.train.sampling import frozen_ranks
from tests.train.vae import tiny

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """Folder of published parts, and of a run of two steps on them."""
    folder = tmp_path_factory.mktemp("begun")
    tiny.publish(folder)
    publish_text(folder)
    Trainer(configured(folder, 2), ClipStream(), folder / "run").run()
    return folder


@pytest.fixture
def parts(begun, tmp_path):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("run/checkpoints/*/state.json"):
        reseal(path, lambda values: json.loads(json.dumps(values).replace(str(begun), str(tmp_path))))
    return tmp_path


def reseal(path, change):
    values = json.loads(path.read_text())
    del values[SEAL]
    values = change(values)
    path.write_text(json.dumps(values | {SEAL: digest(values)}))


def configured(folder, steps, **checkpoint):
    update = {
        "tokenizer": {"kind": "diffusers", "name": str(folder), "frames": 2, "height": 2, "width": 2},
        "text": {
            "kind": "transformers",
            "name": str(folder),
            "subfolder": "text_encoder",
            "tokenizer_subfolder": "tokenizer",
            "max_text_tokens": 4,
        },
        "checkpoint": {"every_steps": 2, **checkpoint},
    }
    return TrainConfig.model_validate(tiny_config(steps).model_dump() | update)


def shift_weights(file):
    tensors = load_file(file)
    save_file({name: tensor + 0.01 for name, tensor in tensors.items()}, file, {"format": "pt"})


def change_json(file):
    values = json.loads(file.read_text())
    values["latents_mean"] = [0.5] * 4
    file.write_text(json.dumps(values))


def swap_words(file):
    text = file.read_text()
    file.write_text(text.replace('"cat"', '"_"').replace('"dog"', '"cat"').replace('"_"', '"dog"'))


REPLACED = {
    "vae/diffusion_pytorch_model.safetensors": (shift_weights, "train.tokenizer"),
    "vae/config.json": (change_json, "train.tokenizer"),
    "text_encoder/model.safetensors": (shift_weights, "train.text"),
    "tokenizer/tokenizer.json": (swap_words, "train.text"),
}


@pytest.mark.parametrize("name", beyond(1, REPLACED))
def test_a_replaced_file_is_named_and_refused_until_it_is_accepted(parts, caplog, name):
    replace, key = REPLACED[name]
    replace(parts / name)
    run = parts / "run"
    with pytest.raises(UsageError) as caught:
        Trainer(configured(parts, 4), ClipStream(), run).run()
    message = str(caught.value)
    assert f"({key}.name)" in message
    assert str(parts / name) in message
    assert "train.checkpoint.changed_parts=accept" in message
    load_trained(str(run), CPU)
    assert f"{parts / name} is another file than the one that " in caplog.text
    caplog.clear()
    Trainer(configured(parts, 4, changed_parts="accept"), ClipStream(), run).run()
    assert f"{parts / name} is another file than the one that " in caplog.text
    caplog.clear()
    Trainer(configured(parts, 6), ClipStream(), run).run()  # those of its last checkpoint count
    load_trained(str(run), CPU)
    assert "another file" not in caplog.text


def test_the_same_files_go_on_without_a_word_and_authorship_does_not_count(parts, caplog):
    file = parts / "vae" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"_diffusers_version": "0.1"}))
    Trainer(configured(parts, 4), ClipStream(), parts / "run").run()
    load_trained(str(parts / "run"), CPU)
    assert "another file" not in caplog.text


def test_parts_that_have_moved_go_on_if_they_are_the_same(parts, tmp_path_factory, caplog):
    moved = tmp_path_factory.mktemp("moved")
    for name in ("vae", "text_encoder", "tokenizer"):
        shutil.move(parts / name, moved / name)
    Trainer(configured(moved, 4), ClipStream(), parts / "run").run()
    assert f"train.tokenizer.name was {parts} and is {moved} now, with the same files" in caplog.text
    shift_weights(moved / "vae" / "diffusion_pytorch_model.safetensors")
    again = tmp_path_factory.mktemp("again")
    shutil.copytree(moved, again, dirs_exist_ok=True)
    with pytest.raises(UsageError, match=r"diffusion_pytorch_model\.safetensors is another file"):
        Trainer(configured(again, 6), ClipStream(), parts / "run").run()


def test_a_checkpoint_of_an_earlier_version_goes_on_with_a_line(parts, caplog):
    for path in parts.glob("run/checkpoints/*/state.json"):
        reseal(
            path, lambda values: {k: v for k, v in values.items() if k != "frozen"} | {"format_version": 5}
        )
    shift_weights(parts / "vae" / "diffusion_pytorch_model.safetensors")
    Trainer(configured(parts, 4), ClipStream(), parts / "run").run()
    assert (
        "is of an earlier version, which did not store the files of its train.text.name, train.tokenizer.name"
        in caplog.text
    )


def test_the_description_of_a_published_model_belongs_to_its_run(tmp_path):
    """Its trained weights are in the checkpoint, its config.json is not."""
    model = publish(tmp_path, "wan", channels=24)
    update = {"model": model.model_dump(), "text": {"width": 8, "max_text_tokens": 4, "kind": "hashed"}}
    config = TrainConfig.model_validate(tiny_config(2).model_dump() | update)
    Trainer(config, ClipStream(), tmp_path / "run").run()
    state = weights_of(str(tmp_path / "run")).state
    assert set(state.frozen) == {"train.model.name"}
    file = tmp_path / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eps": 1e-2}))
    schedule = config.schedule.model_copy(update={"total_steps": 4})
    with pytest.raises(UsageError, match=rf"{file}"):
        Trainer(config.model_copy(update={"schedule": schedule}), ClipStream(), tmp_path / "run").run()


def test_one_rank_reads_the_files_for_all(ranks, tmp_path):
    tiny.publish(tmp_path)
    publish_text(tmp_path)
    for function, arguments in (
        (frozen_ranks.train, (configured(tmp_path, 2).model_dump_json(), str(tmp_path))),
        (frozen_ranks.sample, (str(tmp_path),)),
    ):
        ended = ranks.run(function, 2, *arguments)
        assert ended.codes == [0, 0], ended.errors
        counts = [int((tmp_path / f"{function.__name__}-{rank}").read_text()) for rank in range(2)]
        assert counts == [4, 0]  # weights of VAE and text encoder, two files of the tokenizer


@thorough
def test_ranks_say_a_replaced_file_alike(ranks, tmp_path):
    tiny.publish(tmp_path)
    publish_text(tmp_path)
    config = configured(tmp_path, 2)
    Trainer(config, ClipStream(), tmp_path / "run").run()
    shift_weights(tmp_path / "vae" / "diffusion_pytorch_model.safetensors")
    more = config.model_copy(update={"schedule": config.schedule.model_copy(update={"total_steps": 4})})
    ended = ranks.run(frozen_ranks.train, 2, more.model_dump_json(), str(tmp_path))
    assert all("UsageError" in text and "another file" in text for text in ended.errors), ended.errors


@thorough
def test_one_rank_says_a_replaced_file_for_all(ranks, parts):
    shift_weights(parts / "vae" / "diffusion_pytorch_model.safetensors")
    accepted = configured(parts, 4, changed_parts="accept").model_dump_json()
    for function, arguments in ((frozen_ranks.sample, ()), (frozen_ranks.train, (accepted,))):
        ended = ranks.run(function, 2, *arguments, str(parts))
        assert ended.codes == [0, 0], ended.errors
        assert [text.count("is another file than the one that") for text in ended.errors] == [1, 0]
