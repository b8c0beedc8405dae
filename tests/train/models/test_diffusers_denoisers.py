"""Published transformers in our trainer: what their pipelines compute, and runs of them."""

import itertools
import json

import pytest
import torch
from pydantic import ValidationError

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.config.model import DiffusersConfig
from reelweave.train.config.objective import DDPMConfig, EDMConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.build import build_denoiser
from reelweave.train.models.bundle import Bundle
from reelweave.train.objectives.ddpm import DDPM
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_trained
from tests.thorough import but
from tests.train.clips import ClipStream
from tests.train.models import family_checks
from tests.train.models.family_checks import filled, inputs
from tests.train.published import SPECIAL, drawn, publish, run_config
from tests.train.saved import losses

PLAIN = ("wan", "cogvideox, rotary", "hunyuan, distilled", "cosmos")
ALL = pytest.mark.parametrize("variant", but(PLAIN, SPECIAL))
ONE_EACH = pytest.mark.parametrize("variant", PLAIN)


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def pipeline(variant):
    """The family's own pipeline, of the model alone."""
    import diffusers

    model = drawn(variant)
    none = dict.fromkeys(("tokenizer", "text_encoder", "vae"))
    if variant.startswith("wan"):
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)
        return diffusers.WanPipeline(**none, transformer=model, scheduler=scheduler)
    if variant.startswith("cogvideox"):
        scheduler = diffusers.CogVideoXDDIMScheduler(
            prediction_type="v_prediction", timestep_spacing="trailing"
        )
        return diffusers.CogVideoXPipeline(**none, transformer=model, scheduler=scheduler)
    if variant.startswith("hunyuan"):
        scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=7.0)
        none |= dict.fromkeys(("tokenizer_2", "text_encoder_2"))
        return diffusers.HunyuanVideoPipeline(**none, transformer=model, scheduler=scheduler)

    class Harmless(torch.nn.Module):
        device, dtype = torch.device("cpu"), torch.float32

        def check_text_safety(self, _):
            return True

    scheduler = diffusers.EDMEulerScheduler(sigma_min=0.002, sigma_max=80, sigma_data=0.5)
    kind = diffusers.CosmosTextToWorldPipeline
    if variant == "cosmos 2":
        kind, scheduler = (
            diffusers.Cosmos2TextToImagePipeline,
            diffusers.FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True),
        )
        scheduler.register_to_config(sigma_max=80.0, sigma_data=1.0)
    return kind(**none, transformer=model, scheduler=scheduler, safety_checker=Harmless())


def calls_of(variant, context_1MD, mask_1M, pooled_1D):
    """What a pipeline asks its transformer, with guidance off."""
    given = {"prompt_embeds": filled(context_1MD, mask_1M), "guidance_scale": 1.0}
    if variant.startswith("cogvideox"):
        given["prompt_embeds"] = context_1MD
    elif variant.startswith("hunyuan"):
        given = {
            "prompt_embeds": context_1MD,
            "prompt_attention_mask": mask_1M,
            "pooled_prompt_embeds": pooled_1D,
        }
    return family_checks.pipeline_calls(pipeline(variant), one_frame=variant == "cosmos 2", **given)


@ALL
def test_a_prediction_is_that_within_the_familys_pipeline(tmp_path, variant):
    torch.manual_seed(1)
    context, mask, pooled = torch.randn(1, 5, 8), torch.ones(1, 5, dtype=torch.bool), torch.randn(1, 6)
    frames_first = variant.startswith("cogvideox")
    if not frames_first:
        mask[0, 3:] = False
    calls = calls_of(variant, context, mask, pooled)
    if variant.startswith("hunyuan"):
        context = torch.cat([torch.nn.functional.pad(pooled, (0, 2))[:, None], context], dim=1)
        mask = torch.cat([torch.ones(1, 1, dtype=torch.bool), mask], dim=1)
    unit = 1.0 if variant.startswith("cosmos") else 1000.0
    denoiser = build_denoiser(publish(tmp_path, variant), 4, 8)
    family_checks.predicts_as_its_pipeline(denoiser, calls, context, mask, unit, frames_first)


@ALL
def test_every_weight_gets_a_gradient(tmp_path, variant):
    family_checks.every_weight_gets_a_gradient(build_denoiser(publish(tmp_path, variant), 4, 8))


@ALL
def test_masked_text_and_the_captions_beside_it_do_not_count(tmp_path, variant):
    family_checks.masked_text_does_not_count(build_denoiser(publish(tmp_path, variant), 4, 8))


@pytest.mark.parametrize("variant", but(PLAIN, SPECIAL))
def test_operations_are_those_that_run(tmp_path, variant):
    family_checks.operations_are_those_that_run(publish(tmp_path, variant))


@pytest.mark.parametrize("variant", ["wan", "cosmos"])
def test_tokens_in_any_order_keep_their_positions(tmp_path, variant):
    family_checks.tokens_keep_their_positions(build_denoiser(publish(tmp_path, variant), 4, 8))


def test_only_blocks_repeat(tmp_path):
    denoiser = build_denoiser(publish(tmp_path, "hunyuan"), 4, 8)
    names = [type(block).__name__ for block in denoiser.repeated()]
    assert names == ["HunyuanVideoTransformerBlock", "HunyuanVideoSingleTransformerBlock"]


class Ended(ClipStream):
    """A clip stream that breaks off before the fifth step."""

    def __iter__(self):
        return itertools.islice(super().__iter__(), 4)


@pytest.mark.parametrize("variant", but(PLAIN[:1], PLAIN, PLAIN[2:3]))
def test_a_published_model_learns_and_goes_on_after_a_break(tmp_path, variant):
    config = run_config(tmp_path / "published", variant, steps=24)
    result = Trainer(config, ClipStream(), tmp_path / "whole").run()
    assert result.last_loss < 0.9 * result.first_loss
    with pytest.raises(RunError, match="before step 5"):
        Trainer(config, Ended(), tmp_path / "broken").run()
    Trainer(config, ClipStream(), tmp_path / "broken").run()
    assert losses(tmp_path / "broken") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


def test_a_trained_model_goes_back_to_diffusers(tmp_path):
    from diffusers import WanTransformer3DModel

    config = run_config(tmp_path / "published", "wan", steps=3, ema=EmaConfig(decay=0.9))
    Trainer(config, ClipStream(), tmp_path / "run").run()
    trained = load_trained(str(tmp_path / "run"), torch.device("cpu"))
    export(trained, tmp_path / "out")
    x, t, context, mask = inputs()
    x = torch.randn(2, 24, 2, 4, 4)
    theirs = WanTransformer3DModel.from_pretrained(tmp_path / "out", use_safetensors=True)
    with torch.no_grad():
        answer = theirs(x, 1000 * t, trained.bundle.dit.fill_context(context, mask), return_dict=False)[0]
        expected = trained.bundle.dit(x, t, context, mask)
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    started = Bundle(config).dit(x, t, context, mask)
    assert (answer - started).abs().max() > 1e-3
    with pytest.raises(UsageError, match="exists"):
        export(trained, tmp_path / "out")
    with pytest.raises(UsageError, match="no adapters"):
        export(trained, tmp_path / "other", merged=True)


REFUSED = {
    "another class": (
        {"_class_name": "Transformer2DModel"},
        {},
        "Transformer2DModel; supported are WanTransformer3D",
    ),
    "no class": ({"_class_name": None}, {}, "supported are"),
    "an image, too": ({"in_channels": 36}, {}, "reads 32 channels beside the noisy latents"),
    "other text": ({"text_dim": 16}, {}, "takes text of 16 channels"),
    "another patch": ({"patch_size": [1, 4, 4]}, {}, r"model.patch must be \[1, 4, 4\]"),
    "a pickle": ({}, {"rename": True}, "safetensors"),
}


@pytest.mark.parametrize(("described", "done", "said"), REFUSED.values(), ids=REFUSED)
def test_a_model_that_does_not_fit_is_refused(tmp_path, described, done, said):
    config = publish(tmp_path, "wan")
    path = tmp_path / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | described))
    if done:
        weights = tmp_path / "transformer" / "diffusion_pytorch_model.safetensors"
        torch.save({}, weights.with_suffix(".bin"))
        weights.unlink()
    else:
        with pytest.raises(UsageError, match=said), torch.device("meta"):
            build_denoiser(config, 4, 8)
        return
    with pytest.raises(UsageError, match=said):
        build_denoiser(config, 4, 8)


def test_what_a_model_cannot_do_is_said(tmp_path):
    denoiser = build_denoiser(publish(tmp_path, "wan", text_tokens=5), 4, 8)
    x, t, context, mask = inputs()
    with pytest.raises(UsageError, match=r"no packs.*stream\.regime"):
        denoiser.forward_packed([x[0]], t, context, mask)
    with pytest.raises(UsageError, match="takes 5 tokens of text and got 6"):
        denoiser(x, t, context.repeat(1, 2, 1)[:, :6], mask.repeat(1, 2)[:, :6])
    with pytest.raises(UsageError, match="2x5x4"):
        denoiser.tokens((2, 5, 4))
    with pytest.raises(UsageError, match="positions for"):
        denoiser.tokens((33, 4, 4))
    with pytest.raises(UsageError, match="no such"):
        build_denoiser(DiffusersConfig(name=str(tmp_path), subfolder="no such"), 4, 8)


@pytest.mark.parametrize(("variant", "guidance"), [("hunyuan", 6.0), ("hunyuan, distilled", None)])
def test_only_a_distilled_model_is_told_a_guidance(tmp_path, variant, guidance):
    config = publish(tmp_path, variant, guidance=guidance)
    with pytest.raises(UsageError, match=r"model\.guidance"):
        build_denoiser(config, 4, 8)


def test_parts_that_do_not_belong_together_are_refused(tmp_path):
    config = run_config(tmp_path, "wan")
    with pytest.raises(UsageError, match=r"objective\.name=edm.*flow"):
        Bundle(config.model_copy(update={"objective": EDMConfig()}))
    hunyuan = run_config(tmp_path, "hunyuan")
    with pytest.raises(UsageError, match=r"text\.pooled"):
        Bundle(hunyuan.model_copy(update={"text": config.text}))
    with pytest.raises(ValidationError, match="needs lora"):
        run_config(tmp_path, "wan", model=config.model.model_copy(update={"dtype": "bfloat16"}))


def test_weights_of_a_model_without_memory_are_the_published_ones(tmp_path):
    config = run_config(tmp_path, "wan")
    built, empty = Bundle(config), Bundle(config, meta=True)
    assert all(parameter.is_meta for parameter in empty.dit.parameters())
    given = dict(empty.initial_weights())
    expected = dict(built.dit.named_parameters()) | dict(built.dit.named_buffers())
    assert list(given) == list(expected)
    assert all(torch.equal(given[name], expected[name]) for name in expected)


def test_levels_of_noise_are_those_of_cogvideox():
    from diffusers import CogVideoXDDIMScheduler

    theirs = CogVideoXDDIMScheduler(snr_shift_scale=3.0, rescale_betas_zero_snr=True)
    ours = DDPM(
        DDPMConfig(
            prediction="v",
            schedule="scaled_linear",
            beta_start=0.00085,
            beta_end=0.012,
            snr_shift=3.0,
            zero_terminal_snr=True,
        )
    )
    torch.testing.assert_close(ours.products, theirs.alphas_cumprod.double(), rtol=1e-5, atol=1e-7)
