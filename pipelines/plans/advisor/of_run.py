"""Shapes that the advisor needs, of models that train here."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from reelweave.loader.errors import UsageError, first_line
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.plans.advisor.shapes import VideoModel
from reelweave.train.checkpoint.weights import weights_of
from reelweave.train.config.model import STDiTConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.dit import DiT
from reelweave.train.models.encoders.tokenizer import Tokenizer
from reelweave.train.parallel.context.token_shard import cuttable

_MLP = 4
"""Width of a published model's MLP in units of its own, where no configuration tells."""


def model_of_run(named: str, size: Sequence[int], steps: int) -> VideoModel:
    """Return the model of a run, for a video with guidance.

    Args:
        named: configuration of `reelweave train`, folder of a run, or a checkpoint.
        size: frames, height and width of the video.
        steps: number of steps.

    Raises:
        UsageError: there is neither, the size does not fit the model, or its tokens cannot be shared.
        RunError: the checkpoint is damaged.
    """
    if Path(named).is_file():
        config = resolve(TrainRunConfig, Path(named), []).train
    else:
        saved = weights_of(named, "model")
        try:
            config = TrainConfig.model_validate(saved.state.config)
        except ValidationError as error:
            raise UsageError(
                f"{saved.uri} describes a model that this version does not know: {first_line(error)}"
            ) from error
    bundle = Bundle(config.modules, meta=True)
    bundle.latent_size((size[0], size[1], size[2]))
    return video_model(named, bundle.dit, bundle.tokenizer, size, config.text.max_text_tokens, 2, steps)


def video_model(
    name: str,
    dit: Denoiser,
    tokenizer: Tokenizer,
    size: Sequence[int],
    text_tokens: int,
    passes: int,
    steps: int,
) -> VideoModel:
    """Return a model and a video as the advisor takes them.

    Args:
        name: name of the model.
        dit: the model, on any device.
        tokenizer: tokenizer of its latents.
        size: frames, height and width of the video.
        text_tokens: number of text tokens.
        passes: passes of guidance in each step.
        steps: number of steps.

    Raises:
        UsageError: the size does not fit the model, or its tokens cannot be shared.
    """
    latent_size = tokenizer.latent_size((size[0], size[1], size[2]))
    model, grid, flops = cuttable(dit), dit.grid(latent_size), dit.flops(latent_size, text_tokens)
    layers, share = len(dit.repeated()), 0.5
    if isinstance(model, DiT):
        config = model.config
        heads, hidden, inner = config.heads, config.hidden, config.inner
        sliced = isinstance(config, STDiTConfig) and not config.full_attention
        if sliced:
            layers *= 2
            # Four matrices of either attention; cross-attention (two for video tokens) and MLP are in temporal layers.
            share = 4 * hidden / (4 * hidden + 4 * hidden + 2 * hidden + 2 * inner)
    else:
        heads, sliced = model.full_heads, False
        hidden = heads * int(model.model.config.attention_head_dim)
        inner = _MLP * hidden
    return VideoModel(
        name,
        layers,
        hidden,
        heads,
        inner,
        sum(parameter.numel() for parameter in dit.parameters()),
        grid,
        text_tokens,
        passes,
        steps,
        4 * tokenizer.channels * latent_size[0] * latent_size[1] * latent_size[2],
        dit.joint_text,
        sliced,
        flops.attention / flops.forward,
        share,
    )
