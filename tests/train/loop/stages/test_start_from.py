"""A new run that begins with the weights of another."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.cli import main
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.config.checkpoint import StartFromConfig
from reelweave.train.config.first_frames import FirstFramesConfig
from reelweave.train.config.lora import LoraConfig
from reelweave.train.config.parallel import ParallelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.config.tokenizer import PatchTransformConfig
from reelweave.train.loop.stages.record import read_ancestors
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.encoders.tokenizer import channels_within
from reelweave.train.models.lora import merge
from reelweave.train.sampling.trained.load import load_trained
from tests.s3server import make_bucket, s3_server
from tests.thorough import but
from tests.train.clips import ClipStream, tiny_config
from tests.train.loop.stages.stage_runs import From, M, N, adapters, begins, model, run, same, staged
from tests.train.published import publish_text, run_config
from tests.train.saved import change_state, losses, newest, tensors


def test_two_stages_equal_one_run_where_nothing_changes(tmp_path, first):
    one = run(staged(steps=N + M, ema=0.5), tmp_path / "one")
    start = {"source": str(first), "weights": "model", "optimizer": "kept"}
    two = run(staged(start_from=start, ema=0.5), tmp_path / "two", From(N))
    for group in ("model", "optimizer"):
        expected = tensors(one, group)
        for name, tensor in tensors(two, group).items():
            assert torch.equal(tensor, expected[name]), name
    assert losses(two) == losses(one)[N:]
    state = json.loads((newest(two) / "state.json").read_text())
    [ancestor] = state["ancestors"]
    assert (ancestor["step"], ancestor["weights"], ancestor["optimizer"]) == (N, "model", "kept")
    assert ancestor["name"] == str(newest(first))


def test_the_average_is_what_a_run_begins_with_and_its_own_average_too(tmp_path, first, capsys):
    out = run(staged(first, steps=1, ema=0.5, optimizer=tiny_config(lr=1e-12).optimizer), tmp_path / "next")
    for group in ("model", "ema"):
        for name, tensor in tensors(first, "ema").items():
            torch.testing.assert_close(tensors(out, group)[name], tensor, rtol=0, atol=1e-9)
    assert tensors(out, "optimizer")["dit.embed.weight.step"] == 1
    said = capsys.readouterr().err
    assert f"begins at step 0 with ema weights of step {N} of {newest(first)} (sha256 " in said
    assert "tensors copied, none begin with other values, optimizer fresh, the average begins with" in said


def test_a_file_of_an_export_and_a_checkpoint_itself_are_sources(tmp_path, first):
    file = tmp_path / "weights.safetensors"
    assert main(["export", str(first), "--out", str(file)]) == 0
    for source in (file, newest(first), first / "checkpoints"):
        same(begins(source, tmp_path, f"of {source.name}"), tensors(first, "ema"))
    [ancestor] = read_ancestors(tmp_path / f"of {file.name}")
    assert (ancestor.name, ancestor.step, ancestor.weights) == (str(file), N, "ema")


def test_a_resume_reads_no_source_and_keeps_the_ancestry(tmp_path, first):
    source, out = tmp_path / "first", tmp_path / "next"
    shutil.copytree(first, source)
    run(staged(source, steps=2, checkpoint=tiny_config(every_steps=1).checkpoint), out)
    ancestors = read_ancestors(out)
    shutil.rmtree(source)
    longer = staged(source, steps=3)
    run(longer, out)
    assert read_ancestors(out) == ancestors
    assert len(ancestors) == 1
    third = run(staged(out, steps=1), tmp_path / "third")
    assert [ancestor.step for ancestor in read_ancestors(third)] == [3, N]
    with pytest.raises(
        UsageError, match=r"start_from\.source was .*first' and is '.*other' now; resume with"
    ):
        run(staged(tmp_path / "other", steps=4), out)


def test_a_run_that_was_killed_before_its_first_checkpoint_says_that_its_source_went_on(
    tmp_path, first, capsys
):
    source, out = tmp_path / "first", tmp_path / "next"
    shutil.copytree(first, source)
    run(staged(source), out)
    shutil.rmtree(out / "checkpoints")
    run(staged(steps=N + 1, ema=0.5), source, From(0))
    capsys.readouterr()
    run(staged(source), out)
    assert f"this run began with ema weights of step {N} of" in capsys.readouterr().err
    assert read_ancestors(out)[0].step == N + 1


def test_changed_keys_are_named_and_the_way_to_a_next_stage(first):
    with pytest.raises(UsageError) as caught:
        run(staged(steps=N, ema=0.5, seed=7), first)
    assert str(caught.value) == (
        f"{newest(first)} was made with another configuration: seed was 0 and is 7 now; resume with the old value, or"
        f" begin a next stage in another `out` with train.start_from={newest(first)}"
    )


@pytest.mark.parametrize("patch", [(1, 4, 4), (1, 1, 1), (1, 2, 4)])
def test_another_patch_is_resized(tmp_path, first, capsys, patch):
    before = tensors(first, "ema")
    now = begins(first, tmp_path, model=model(patch=patch))
    ends = {"dit.embed.weight", "dit.head.weight", "dit.head.bias"}
    same(now, before, before.keys() - ends)
    assert (
        now["dit.embed.weight"].shape[1]
        == now["dit.head.weight"].shape[0]
        == 24 * patch[0] * patch[1] * patch[2]
    )
    assert (
        f"3 extended (patch [1, 2, 2] resized to {list(patch)}: dit.embed.weight, " in capsys.readouterr().err
    )


def test_coefficients_of_a_patch_keep_their_weights_where_more_of_them_are_latents(tmp_path, capsys):
    few, more = (PatchTransformConfig(frames=2, height=4, width=4, kept=count) for count in (4, 6))
    first = run(staged(steps=1, tokenizer=few), tmp_path / "few")
    before, now = tensors(first), begins(first, tmp_path, tokenizer=more)
    channels = channels_within(few, more)
    rest = sorted(set(range(18)) - set(channels))
    assert rest[0] < 12  # new coefficients lie between the old ones
    grown = now["dit.embed.weight"].unflatten(1, (18, 4))
    same({"embed": grown[:, channels]}, {"embed": before["dit.embed.weight"].unflatten(1, (12, 4))})
    assert grown[:, rest].abs().max() < 1e-9
    assert "6 more channels of latents begin with zeros" in capsys.readouterr().err
    folder = tmp_path / "folder"
    assert main(["export", str(first), "--out", str(folder)]) == 0
    with pytest.raises(
        UsageError, match="a folder does not say which coefficients of a patch its channels are"
    ):
        begins(folder, tmp_path, "from-folder", tokenizer=more)


def test_first_frames_begin_with_zeros_and_the_rest_as_it_was(tmp_path, first):
    before = tensors(first, "ema")
    now = begins(first, tmp_path, first_frames=FirstFramesConfig())
    columns = before["dit.embed.weight"].shape[1]
    torch.testing.assert_close(
        now["dit.embed.weight"][:, :columns], before["dit.embed.weight"], rtol=0, atol=1e-9
    )
    assert now["dit.embed.weight"].shape[1] == columns + 4 * 25
    assert now["dit.embed.weight"][:, columns:].abs().max() < 1e-9
    same(now, before, before.keys() - {"dit.embed.weight"})
    with pytest.raises(
        UsageError, match="it has 25 channels of first frames, and this run 0: none are dropped"
    ):
        begins(tmp_path / "next", tmp_path, "back")


def test_adapters_begin_with_adapters_and_keep_what_they_compute(tmp_path, first, capsys):
    run(staged(lora=adapters(first)), tmp_path / "adapted")
    before = tensors(tmp_path / "adapted")
    same(begins(tmp_path / "adapted", tmp_path, lora=adapters(first)), before)
    now = begins(tmp_path / "adapted", tmp_path, "scaled", lora=adapters(first, alpha=8.0))
    assert any(".lora_B." in name and tensor.abs().max() > 1e-4 for name, tensor in before.items())
    with pytest.raises(UsageError, match=r"train\.lora\.targets was \[\] there, and is \['attend\.query'\]"):
        begins(tmp_path / "adapted", tmp_path, "fewer", lora=adapters(first, targets=("attend.query",)))
    capsys.readouterr()
    begins(tmp_path / "adapted", tmp_path, "rounded", lora=adapters(first, base_dtype="nf4"))
    assert "other than there: train.lora.base_dtype was None and is 'nf4'" in capsys.readouterr().err
    # A run of all weights begins with the merged ones.
    adapted = load_trained(str(tmp_path / "adapted"), torch.device("cpu")).bundle
    merge(adapted.dit)
    merged = begins(tmp_path / "adapted", tmp_path, "merged")
    torch.testing.assert_close(
        merged["dit.blocks.0.attend.query.weight"],
        adapted.dit.blocks[0].attend.query.weight.detach(),
        rtol=1e-6,
        atol=1e-8,
    )
    assert merged.keys() == tensors(first).keys()
    change_state(tmp_path / "adapted", lambda state: state["base"].update(name=str(tmp_path / "gone")))
    with pytest.raises(
        UsageError, match=r"the weights under the adapters of .* not to be had, .*gone holds no"
    ):
        begins(tmp_path / "adapted", tmp_path, "gone")
    assert [ancestor.name for ancestor in read_ancestors(tmp_path / "merged")] == [
        str(newest(tmp_path / "adapted")),
        str(newest(first)),
    ]
    same(now, {name: tensor / 4 if ".lora_B." in name else tensor for name, tensor in before.items()})


def test_a_published_model_begins_with_a_run_or_an_export_of_it(tmp_path, capsys):
    words = {"text": publish_text(tmp_path, width=8) | {"kind": "transformers", "max_text_tokens": 4}}
    config = TrainConfig.model_validate(run_config(tmp_path, "wan", 2).model_dump() | words)
    source = run(config, tmp_path / "first")
    assert main(["export", str(source), "--out", str(tmp_path / "exported")]) == 0
    small = config.model_copy(
        update={"optimizer": config.optimizer.model_copy(update={"lr": 1e-12, "weight_decay": 0.0})}
    )
    for name in ("first", "exported"):
        start = StartFromConfig(source=str(tmp_path / name))
        out = run(small.model_copy(update={"start_from": start}), tmp_path / f"of {name}")
        same(tensors(out), tensors(source))
    [file] = (tmp_path / "text_encoder").glob("*.safetensors")
    save_file({name: tensor + 0.1 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    capsys.readouterr()
    run(small.model_copy(update={"start_from": StartFromConfig(source=str(source))}), tmp_path / "other text")
    assert "other than there: the files of train.text.name are others" in capsys.readouterr().err
    for name, way in (
        ("first", "`reelweave export .* and train.model.name=FOLDER"),
        ("exported", "train.model.weights=.*exported"),
    ):
        start = StartFromConfig(source=str(tmp_path / name))
        lora = small.model_copy(update={"start_from": start, "lora": LoraConfig(rank=2)})
        with pytest.raises(UsageError, match=rf"holds all weights, .* use {way} without train.start_from"):
            run(lora, tmp_path / "adapted")
    run(lora.model_copy(update={"start_from": None}), tmp_path / "adapted")
    begun = small.model_copy(update={"start_from": StartFromConfig(source=str(tmp_path / "adapted"))})
    with pytest.raises(
        UsageError, match=r"holds adapters, .* `reelweave export .*adapted.* --merge --out FOLDER` and"
    ):
        run(begun, tmp_path / "whole")
    with pytest.raises(UsageError, match=r"holds weights of .*, and train\.model is dit"):
        run(staged(tmp_path / "adapted"), tmp_path / "ours")
    [file] = (tmp_path / "exported").glob("*.safetensors")
    weights = load_file(file)
    save_file({name: tensor.to(torch.int8) for name, tensor in weights.items()}, file, {"format": "pt"})
    with pytest.raises(UsageError, match=r"are whole numbers, as quantized ones are: .* \(int8\), of 69"):
        run(small.model_copy(update={"start_from": start}), tmp_path / "quantized")
    (tmp_path / "exported" / "config.json").write_text('{"_class_name": "CogVideoXTransformer3DModel"}')
    with pytest.raises(
        UsageError, match=r"is a CogVideoXTransformer3DModel, and train\.model\.name=.* a WanTransf"
    ):
        run(small.model_copy(update={"start_from": start}), tmp_path / "other")


def test_a_source_may_be_on_s3(tmp_path, first):
    with s3_server() as endpoint:
        make_bucket(endpoint, "runs")
        config = StorageConfig(endpoint_url=endpoint)
        for path in newest(first).rglob("*.*"):
            name = path.relative_to(first)
            open_storage("s3://runs/a", config).write(str(name), path.read_bytes())
        out = tmp_path / "next"
        small = tiny_config(lr=1e-12).optimizer.model_copy(update={"weight_decay": 0.0})
        Trainer(staged("s3://runs/a", optimizer=small), ClipStream(), out, storage=config).run()
        file = tmp_path / "weights.safetensors"
        assert main(["export", str(first), "--out", str(file)]) == 0
        open_storage("s3://runs/b", config).write(file.name, file.read_bytes())
        of_file = staged(f"s3://runs/b/{file.name}", optimizer=small)
        Trainer(of_file, ClipStream(), tmp_path / "of file", storage=config).run()
    same(tensors(out), tensors(first, "ema"))
    same(tensors(tmp_path / "of file"), tensors(first, "ema"))
    assert read_ancestors(out)[0].name == f"s3://runs/a/checkpoints/{newest(first).name}"


LAYOUTS = {
    "FSDP": {"dp_replicate": 1, "dp_shard": "rest"},
    "ZeRO-1": {"dp_replicate": 1, "dp_shard": "rest", "shard": "optimizer"},
    "TP": {"tp": 2},
    "PP": {"pp": 2},
    "cascades over FSDP": {"schedule": "cascade", "dp_replicate": "rest", "dp_shard": 2},
}


def train_stage(config, out):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    stage = TrainConfig.model_validate_json(config)
    degree = stage.parallel.tp * stage.parallel.pp
    run(stage, Path(out), From(N, rank // degree, size // degree))


@pytest.mark.parametrize("layout", but(("FSDP",), LAYOUTS, ("TP", "cascades over FSDP")))
def test_any_layout_begins_with_the_weights_of_any_other(tmp_path, first, ranks, layout):
    start = {"source": str(first), "weights": "model", "optimizer": "kept"}
    config = staged(start_from=start, parallel=ParallelConfig(**LAYOUTS[layout]))
    ended = ranks.run(train_stage, 2, config.model_dump_json(), str(tmp_path / "two"))
    assert ended.codes == [0, 0], ended.errors
    assert losses(tmp_path / "two") == pytest.approx(
        losses(run(staged(start_from=start), tmp_path / "one", From(N))), rel=1e-5
    )
    # And back, with first frames that a rule adds to divided weights.
    config = staged(
        tmp_path / "two", first_frames=FirstFramesConfig(), parallel=ParallelConfig(**LAYOUTS[layout])
    )
    ended = ranks.run(train_stage, 2, config.model_dump_json(), str(tmp_path / "three"))
    assert ended.codes == [0, 0], ended.errors
    one = run(staged(tmp_path / "two", first_frames=FirstFramesConfig()), tmp_path / "back", From(N))
    assert losses(tmp_path / "three") == pytest.approx(losses(one), rel=1e-5)


def killed_stage(config, out):
    """The rank is killed once it has the weights, before anything of the run is written."""
    Checkpoints.reserve = lambda _: os.kill(os.getpid(), signal.SIGKILL)
    train_stage(config, out)


def test_a_run_that_is_killed_while_it_starts_begins_again(tmp_path, first, ranks):
    config = staged(first).model_dump_json()
    ended = ranks.run(killed_stage, 1, config, str(tmp_path / "next"))
    assert ended.codes == [-9], ended.errors
    assert not (tmp_path / "next" / "metrics.jsonl").exists()
    ended = ranks.run(train_stage, 1, config, str(tmp_path / "next"))
    assert ended.codes == [0], ended.errors
    assert losses(tmp_path / "next") == losses(run(staged(first), tmp_path / "alone", From(N)))
