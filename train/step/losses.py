"""Loss of each sample in a microbatch or a pack."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import pad_sequence

from reelweave.loader.batch import Microbatch, Pack
from reelweave.loader.errors import UsageError
from reelweave.train.config.parts import LossConfig
from reelweave.train.measure.timings import Timed, no_timing
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import ComputeTotals
from reelweave.train.models.encoders.text import EncodedText
from reelweave.train.models.transfer import send, send_one
from reelweave.train.objectives.draw import draw
from reelweave.train.objectives.first_frames import picture_video
from reelweave.train.objectives.level import Level, pose
from reelweave.train.step.noise import draw_noise
from reelweave.train.step.squared_errors import DenoisingInputs, SquaredErrors, whole_model_errors


@dataclass(frozen=True, eq=False)
class Losses:
    """Losses of the B samples of a microbatch.

    Attributes:
        each: weighted mean squared error of each sample, at least float32 [B], on the device.
        normals: standard normal numbers that determine the times, [B], on the CPU.
        video_tokens: number of video tokens of each sample.
        work: tokens and FLOPs of all samples.
    """

    each: torch.Tensor
    normals: torch.Tensor
    video_tokens: tuple[int, ...]
    work: ComputeTotals


class InputSource(NamedTuple):
    """Lazy source of a batch's inputs; each function is called once, when its result is needed.

    Attributes:
        clean: returns clean latents for an index of `alike`, float32 [B, C, T, H, W].
        text: returns the text of all samples, given the caption dropout.
        picture: returns the latents of the first frame with grey frames behind it, like ``clean``; None: there are
            none for a model that reads them.
    """

    clean: Callable[[int], torch.Tensor]
    text: Callable[[Sequence[bool]], EncodedText]
    picture: Callable[[int], torch.Tensor] | None = None


def losses(
    bundle: Bundle,
    config: LossConfig,
    batch: Microbatch | Pack,
    device: torch.device,
    quantile: float | None = None,
    errors: SquaredErrors = whole_model_errors,
    part: Timed = no_timing,
) -> Losses:
    """Run the model on a batch; a sample's loss is the mean over its own values.

    Noise, time and caption dropout depend on the sample alone: its loss is the same in any microbatch and in a
    pack.

    Args:
        bundle: modules of the run.
        config: configuration of the loss.
        batch: B samples of one shape, or packed ones of any.
        device: device of the model.
        quantile: use this quantile of times for all samples, with their captions; None: draw both.
        errors: function that runs the model.
        part: timer of the encoders.
    """
    (clips, stored), contexts = _clips(batch), batch.contexts
    moved = send([*clips, *(contexts or ())], device)
    device_clips = dict(enumerate(moved[: len(clips)]))
    contexts = None if contexts is None else tuple(moved[len(clips) :])
    source = InputSource(
        partial(_latents, bundle, device_clips, stored, part),
        partial(_encode_captions, bundle, batch.captions, contexts, device),
        partial(_picture, bundle, device_clips, stored, part),
    )
    del clips, moved
    return losses_of(bundle, config, batch, source, device, quantile, errors, part)


def losses_of(
    bundle: Bundle,
    config: LossConfig,
    batch: Microbatch | Pack,
    source: InputSource,
    device: torch.device,
    quantile: float | None = None,
    errors: SquaredErrors = whole_model_errors,
    part: Timed = no_timing,
) -> Losses:
    """Compute `losses` with latents and text from elsewhere; uses only keys, datasets and passes of the batch."""
    # Keep no reference to clean latents, which would live through the forward.
    posed = [
        _pose(bundle, config, batch.draw_keys[rows], batch.passes[rows], source, index, quantile)
        for index, rows in enumerate(alike(batch))
    ]
    dropped = [drop for pose in posed for drop in pose.dropped]
    told_B = torch.cat([pose.level.timestep_input for pose in posed])
    with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
        with part("text"):
            text = source.text(dropped)
        inputs, targets = [pose.inputs for pose in posed], [pose.targets for pose in posed]
        dit_inputs = DenoisingInputs(
            inputs, targets, told_B, text.context, text.mask, isinstance(batch, Pack), text.host_mask
        )
        errors_B = errors(bundle.dit, dit_inputs)
    each = torch.cat([pose.level.weight for pose in posed]) * errors_B
    video_tokens = tuple(count for pose in posed for count in [pose.tokens] * len(pose.dropped))
    normals_B = torch.cat([pose.normals for pose in posed])
    work = bundle.dit.work([pose.inputs.shape[2:] for pose in posed for _ in pose.dropped], text.host_mask)
    return Losses(each, normals_B, video_tokens, work)


def no_picture() -> UsageError:
    """Return the error for stored latents under a model that reads the first frame with grey frames behind it."""
    return UsageError(
        "this image-to-video model reads the first frame with grey frames behind it, of which the dataset has no"
        " latents: train on the version with clips, from which `reelweave latents` made this one"
    )


def alike(batch: Microbatch | Pack) -> list[slice]:
    """Return the slices of samples that share an encoder call: all of equal shape, or one each in a pack."""
    if isinstance(batch, Pack):
        return [slice(index, index + 1) for index in range(len(batch.keys))]
    return [slice(None)]


def pad_contexts(contexts: Sequence[torch.Tensor]) -> EncodedText:
    """Pad contexts [tokens, D] of B captions to [B, M, D] with a mask of valid tokens, [B, M]."""
    lengths_B1 = torch.tensor([[len(context)] for context in contexts])
    context_BMD = pad_sequence(list(contexts), batch_first=True)
    mask_BM = torch.arange(context_BMD.shape[1]) < lengths_B1
    return EncodedText(context_BMD, send_one(mask_BM, context_BMD.device), mask_BM)


def stored_text(
    bundle: Bundle, contexts: Sequence[torch.Tensor], dropped: Sequence[bool], device: torch.device
) -> EncodedText:
    """Pad stored contexts, with the empty caption's context for dropped captions."""
    empty_MD = None
    if any(dropped) or bundle.text.lockstep:
        empty_MD = bundle.text([""])[0][0].float()
    return pad_contexts(
        [
            context.float() if empty_MD is None or not drop else empty_MD
            for drop, context in zip(dropped, send(contexts, device), strict=True)
        ]
    )


def captions_of(captions: Sequence[str], dropped: Sequence[bool]) -> list[str]:
    """Return captions with dropped ones empty."""
    return ["" if drop else caption for drop, caption in zip(dropped, captions, strict=True)]


@dataclass(frozen=True, eq=False)
class _Posed:
    """Model inputs and targets of samples of one shape."""

    inputs: torch.Tensor
    targets: torch.Tensor
    level: Level
    normals: torch.Tensor
    dropped: list[bool]
    tokens: int


def _encode_captions(
    bundle: Bundle,
    captions: Sequence[str],
    contexts: Sequence[torch.Tensor] | None,
    device: torch.device,
    dropped: Sequence[bool],
) -> EncodedText:
    """Return each sample's text, with the empty caption's for dropped captions."""
    if contexts is None:
        return bundle.text.encode(captions_of(captions, dropped))
    return stored_text(bundle, contexts, dropped, device)


def _latents(
    bundle: Bundle, clips: dict[int, torch.Tensor], stored: Sequence[bool], part: Timed, index: int
) -> torch.Tensor:
    """Return clean latents, float32 [B, C, T, H, W], from pixels or stored latents, which are not kept."""
    with torch.no_grad(), part("vae"):
        clip = clips[index] if bundle.dit.reads_picture else clips.pop(index)
        return clip.float() if stored[index] else bundle.tokenizer.encode(clip)


def _picture(
    bundle: Bundle, clips: dict[int, torch.Tensor], stored: Sequence[bool], part: Timed, index: int
) -> torch.Tensor:
    """Return the latents of a clip's first frame with grey frames behind it, float32 [B, C, T, H, W]."""
    if stored[index]:
        raise no_picture()
    with torch.no_grad(), part("vae"):
        video_BCTHW = clips.pop(index)
        return bundle.tokenizer.encode(picture_video(video_BCTHW, video_BCTHW.shape[2]))


def _clips(batch: Microbatch | Pack) -> tuple[list[torch.Tensor], list[bool]]:
    """Return pixels or stored latents of the samples that are alike, [B, C, T, H, W], and True for latents."""
    if isinstance(batch, Pack):
        # Of a pack, numbers are latents.
        return [video[None] for video in batch.videos], [video.is_floating_point() for video in batch.videos]
    if batch.latents_BCTHW is not None:
        return [batch.latents_BCTHW], [True]
    return [batch.video_BCTHW], [False]


def _pose(
    bundle: Bundle,
    config: LossConfig,
    keys: Sequence[str],
    passes: Sequence[int],
    source: InputSource,
    index: int,
    quantile: float | None,
) -> _Posed:
    clean_BCTHW = source.clean(index)
    tokens = bundle.dit.tokens(clean_BCTHW.shape[2:])
    drawn = draw(
        config.objective.caption_dropout,
        config.seed,
        keys,
        passes,
        clean_BCTHW.shape[2],
        config.first_frames,
    )
    normals_B, dropped = drawn.normals, drawn.dropped
    if quantile is not None:
        normals_B = torch.full_like(normals_B, float(torch.special.ndtri(torch.tensor(quantile).double())))
        dropped = [False] * len(dropped)
    times_B = torch.stack([bundle.objective.time(normal, tokens) for normal in normals_B])
    noise_BCTHW = draw_noise(config.seed, keys, passes, clean_BCTHW.shape[1:], clean_BCTHW.device)
    dtype = torch.promote_types(clean_BCTHW.dtype, noise_BCTHW.dtype)
    level = bundle.objective.level(times_B).to(times_B.device, dtype)
    if config.first_frames and bundle.dit.keeps_given:
        # A loss is the mean over the frames that the model makes.
        frames = clean_BCTHW.shape[2]
        made_B = torch.tensor([frames - num_given for num_given in drawn.num_given])
        level = replace(level, weight=level.weight * frames / made_B)
    level = Level.of(send_one(level.stack(), clean_BCTHW.device))
    input_BCTHW, target_BCTHW = pose(level, clean_BCTHW, noise_BCTHW)
    if config.first_frames:
        read_BCTHW = clean_BCTHW
        if bundle.dit.reads_picture:
            assert source.picture is not None, "see `run_by_cascades`"
            read_BCTHW = source.picture(index)
        condition_BKTHW = bundle.dit.condition(read_BCTHW, drawn.num_given)
        input_BCTHW = torch.cat([input_BCTHW, condition_BKTHW.to(input_BCTHW.dtype)], dim=1)
    return _Posed(input_BCTHW, target_BCTHW, level, normals_B, dropped, tokens)
