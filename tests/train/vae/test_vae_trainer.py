"""The loop that fine-tunes tokenizers: the same step on any ranks, the same end after a break."""

import json
import os
import signal
from dataclasses import replace

import pytest
import torch

from reelweave.loader.buckets.assignment import Bucket
from reelweave.loader.errors import RunError, UsageError
from reelweave.train.vae.evaluation import Evaluation
from reelweave.train.vae.trainer import VaeTrainer
from tests.thorough import but, nightly, thorough
from tests.train.models import diffusers_vaes
from tests.train.models.diffusers_vaes import FAMILIES
from tests.train.saved import losses, metrics, newest, stored, tensors
from tests.train.vae import tiny
from tests.train.vae.tiny import MixedStream, config, publish

GROUPS = ("model", "optimizer", "ema", "latents", "discriminator", "discriminator_optimizer", "adversary")


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    publish(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder, tmp_path_factory, ranks):
    """A run with a discriminator in one process, in float64."""
    out = tmp_path_factory.mktemp("undisturbed")
    ended = ranks.run(tiny.run, 1, str(folder), str(out))
    assert ended.codes == [0], ended.errors
    return out


def same_end(out, other, tolerance):
    for group in GROUPS:
        found, expected = tensors(out, group), tensors(other, group)
        assert found.keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(
                found[name], tensor, rtol=tolerance, atol=tolerance, msg=f"{group} {name}"
            )
    for found, expected in zip(metrics(out), metrics(other), strict=True):
        assert found["parts"] == pytest.approx(expected["parts"], rel=1e-6, abs=tolerance)


def test_two_ranks_with_unequal_microbatches_train_as_one_process_does(folder, tmp_path, ranks, undisturbed):
    ended = ranks.run(tiny.run, 2, str(folder), str(tmp_path), None, True)
    assert ended.codes == [0, 0], ended.errors
    # AdamW's first steps take a gradient's sign, at any size of it.
    same_end(tmp_path, undisturbed, 1e-9)
    learnt = tensors(tmp_path, "adversary")
    assert learnt["ratio"] > 0
    assert learnt["usual"].any()


@thorough
def test_a_run_that_breaks_off_ends_as_an_undisturbed_one(folder, tmp_path, ranks, undisturbed):
    ended = ranks.run(tiny.run, 2, str(folder), str(tmp_path), 5, True)
    assert ended.codes == [0, 0], ended.errors
    assert newest(tmp_path).name == "step-000004"
    ended = ranks.run(tiny.run, 1, str(folder), str(tmp_path))
    assert ended.codes == [0], ended.errors
    assert [line["step"] for line in metrics(tmp_path)] == list(range(1, 8))
    same_end(tmp_path, undisturbed, 1e-9)


def test_terms_count_from_their_steps_on(undisturbed):
    named = [set(line["parts"]) for line in metrics(undisturbed)]
    assert named[0] == {"mse", "kl"}
    assert named[1] == {"mse", "kl", "l1", "discriminator"}
    assert named[2] == named[6] == {"mse", "kl", "l1", "discriminator", "gan"}


def test_a_signal_saves_and_ends(folder, tmp_path):
    class Interrupted(MixedStream):
        def microbatch(self, step, slot=0):
            if step == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().microbatch(step, slot)

    result = VaeTrainer(config(folder), Interrupted(), tmp_path).run()
    assert (result.stopped, result.steps) == (True, 2)
    assert VaeTrainer(config(folder), MixedStream(), tmp_path).run().steps == 6


def test_another_configuration_is_refused(folder, tmp_path):
    VaeTrainer(config(folder, 1), MixedStream(), tmp_path).run()
    with pytest.raises(UsageError, match=r"losses\.mse\.weight was 1\.0 and is 2\.0 now"):
        VaeTrainer(config(folder, 2, losses={"mse": {"weight": 2.0}}), MixedStream(), tmp_path).run()


def test_new_weights_are_trained_alone_at_first(tmp_path):
    publish(tmp_path)
    changes = {"dim_mult": [1, 1, 1], "temperal_downsample": [True, False], "scale_factor_spatial": 4}
    (tmp_path / "changed.json").write_text(json.dumps(changes))
    model = {"architecture": str(tmp_path / "changed.json"), "new_only_steps": 2, "height": 4, "width": 4}
    settings = config(tmp_path, 3, model, checkpoint={"every_steps": 1, "background": False})
    VaeTrainer(settings, MixedStream(), tmp_path / "run").run()
    report = json.loads((tmp_path / "run" / "initialisation.json").read_text())
    begun = publish(tmp_path).state_dict()
    steps = [stored(tmp_path / "run" / "checkpoints" / f"step-00000{step}") for step in (1, 2, 3)]
    name = "encoder.conv_in.weight"
    assert name in report["taken"]
    assert torch.equal(steps[1][name], begun[name])
    assert not torch.equal(steps[2][name], begun[name])
    moments = stored(tmp_path / "run" / "checkpoints" / "step-000002", "optimizer")
    assert moments[f"{name}.step"] == 0
    new = "decoder.up_blocks.0.resnets.0.conv1.weight"
    assert new in report["new"]
    assert not torch.equal(steps[0][new], steps[1][new])


def test_a_frozen_encoder_stays(folder, tmp_path):
    settings = config(folder, 2, {"frozen_encoder": True}, losses={"kl": None})
    VaeTrainer(settings, MixedStream(), tmp_path).run()
    assert {name.split(".")[0] for name in tensors(tmp_path)} == {"decoder", "post_quant_conv"}


@nightly
def test_bfloat16_follows_float32(folder, tmp_path):
    for dtype in ("float32", "bfloat16"):
        VaeTrainer(config(folder, 5, dtype=dtype), MixedStream(), tmp_path / dtype).run()
    assert losses(tmp_path / "bfloat16") == pytest.approx(losses(tmp_path / "float32"), rel=0.03)
    assert {weight.dtype for weight in tensors(tmp_path / "bfloat16").values()} == {torch.float32}


def test_a_step_that_is_not_finite_changes_nothing(folder, tmp_path):
    class Poisoned(MixedStream):
        def microbatch(self, step, slot=0):
            batch = super().microbatch(step, slot)
            video = batch.video_BCTHW.float() / 127.5 - 1
            return replace(batch, video_BCTHW=video * torch.nan if step == 1 else video)

    gan = tiny.GAN | {"start_step": 1}
    settings = config(
        folder, 2, losses={"gan": gan}, checkpoint={"every_steps": 1, "background": False}, ema={"decay": 0.5}
    )
    VaeTrainer(settings, Poisoned(), tmp_path).run()
    assert [line["skipped"] for line in metrics(tmp_path)] == [False, True]
    for group in GROUPS:
        before, after = (stored(tmp_path / "checkpoints" / f"step-00000{step}", group) for step in (1, 2))
        assert all(torch.equal(before[name], after[name]) for name in before), group


def test_lpips_is_trained_on_and_reported(folder, tmp_path):
    import torchvision

    class Larger(MixedStream):
        def microbatch(self, step, slot=0):
            batch = super().microbatch(1, slot)
            return replace(batch, step=step, video_BCTHW=batch.video_BCTHW.repeat(1, 1, 1, 1, 2))

    torch.manual_seed(0)
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), tmp_path / "net.pth")
    lpips = {"network": "squeeze", "backbone": str(tmp_path / "net.pth"), "start_step": 2}
    settings = config(folder, 3, losses={"lpips": lpips}, dtype="bfloat16")
    look = Evaluation(3, lambda: [Larger().microbatch(0)])
    VaeTrainer(settings, Larger(), tmp_path / "run", look).run()
    assert ["lpips" in line["parts"] for line in metrics(tmp_path / "run")] == [False, True, True]
    first, *_, last = (tmp_path / "run" / "reconstruction.jsonl").read_text().splitlines()
    assert json.loads(last)["lpips"]["mean"] < json.loads(first)["lpips"]["mean"]
    assert json.loads(last)["lpips"]["rest"] is None
    assert set(tensors(tmp_path / "run")) == set(publish(tmp_path).state_dict())


@thorough
def test_looks_are_recorded_once_after_a_resume_and_shown(folder, tmp_path):
    held_out = [MixedStream().microbatch(step) for step in range(3)]
    look = Evaluation(2, lambda: held_out, shown=2)
    broken = MixedStream()
    broken.ends_before = 0
    with pytest.raises(RunError, match="ended"):  # before the first checkpoint
        VaeTrainer(config(folder, 4), broken, tmp_path, look).run()
    VaeTrainer(config(folder, 4), MixedStream(), tmp_path, look).run()
    VaeTrainer(config(folder, 6), MixedStream(), tmp_path, look).run()
    lines = [json.loads(line) for line in (tmp_path / "reconstruction.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 2, 4, 6]
    assert len(lines[0]["psnr"]["by_frame"]) == 9
    assert sorted(path.name for path in (tmp_path / "reconstructions").iterdir())[0] == "step-000000.png"


def test_a_decoder_that_gives_other_clips_back_is_told_of(folder, tmp_path):
    class Threes(MixedStream):
        def microbatch(self, step, slot=0):
            batch = super().microbatch(0, slot)
            return replace(batch, video_BCTHW=batch.video_BCTHW[:, :, :3])

    with pytest.raises(
        UsageError, match=r"clips of 1 frames of 16x16 of clips of 3 .* to 1 \+ multiples of 4"
    ):
        VaeTrainer(config(folder, 1), Threes(), tmp_path).run()


def test_a_rare_shape_that_does_not_come_back_is_refused_before_the_first_step(folder, tmp_path):
    class Rare(MixedStream):
        shapes = (*tiny.SHAPES, Bucket(7, 16, 16))

    with pytest.raises(UsageError, match=r"frames .* has 7, .* take 1 \+ a multiple of 4"):
        VaeTrainer(config(folder, 1), Rare(), tmp_path / "run").run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("family", but(list(FAMILIES)[:2], FAMILIES, []))
def test_every_family_learns_and_computes_activations_again_to_the_same_gradient(tmp_path, family):
    diffusers_vaes.publish(tmp_path, family)
    side = FAMILIES[family][2].get("height", 8)

    class Nines(MixedStream):
        def microbatch(self, step, slot=0):
            batch = super().microbatch(0, slot)
            frames = 1 if step else 9
            shape = (4, 3, frames, 2 * side, 2 * side)
            drawn = torch.rand(shape, generator=torch.Generator().manual_seed(step)) * 2 - 1
            return replace(batch, step=step, video_BCTHW=drawn)

    norms = []
    for again in (False,) if "wan" in family else (False, True):
        model = {"frames": 4, "height": side, "width": side, "activation_checkpointing": again}
        settings = config(tmp_path, 2, model, losses={"kl": None} if family == "cosmos" else {})
        VaeTrainer(settings, Nines(), tmp_path / str(again)).run()
        norms.append([line["grad_norm"] for line in metrics(tmp_path / str(again))])
    assert min(norms[0]) > 0
    assert norms[-1] == pytest.approx(norms[0], rel=1e-4)


def test_what_a_family_cannot_do_is_refused(folder, tmp_path):
    with pytest.raises(UsageError, match="cannot compute the activations of a AutoencoderKLWan again"):
        VaeTrainer(config(folder, 1, {"activation_checkpointing": True}), MixedStream(), tmp_path).run()
    publish(tmp_path, tiny.COSMOS)
    model = {"frames": 4, "height": 4, "width": 4}
    with pytest.raises(UsageError, match="no posterior, so there is no KL"):
        VaeTrainer(config(tmp_path, 1, model), MixedStream(), tmp_path / "run").run()
