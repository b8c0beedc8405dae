"""Configuration of fine-tuning a video tokenizer; importing it loads no torch."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from reelweave.loader.buckets.recalibrate import RecalibrateConfig
from reelweave.loader.buckets.tokens import Compression
from reelweave.loader.settings import Settings
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.config.log import LogConfig
from reelweave.train.config.optimizer import Decay, EmaConfig, OptimizerConfig, ScheduleConfig
from reelweave.train.config.parallel import ParallelConfig

SSIM_MIN_PX = 11
"""Shortest frame side that SSIM accepts: its window."""


class VaeModelConfig(Settings):
    """A causal 3D VAE of diffusers, in its published architecture or one initialized from its weights."""

    name: str = Field(
        description="name of a pipeline or VAE on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "vae",
        description="subfolder of the VAE in a pipeline; ignored where a local folder holds the VAE alone",
    )
    architecture: Path | None = Field(
        None,
        description="JSON config of diffusers in place of the VAE's config.json; weights that fit are loaded, the"
        " others initialized from seed; null: the published architecture",
    )
    new_only_steps: int = Field(
        0,
        ge=0,
        description="number of first steps in which the loaded weights are frozen; needs architecture",
    )
    frozen_encoder: bool = Field(
        False,
        description="train the decoder alone, so that stored latents and models trained on them stay valid",
    )
    frames: int = Field(4, ge=1, description="video frames per latent frame; must match the architecture")
    height: int = Field(8, ge=1, description="pixel rows per latent row; must match the architecture")
    width: int = Field(8, ge=1, description="pixel columns per latent column; must match the architecture")
    statistics: Literal["auto", "keep", "measure"] = Field(
        "auto",
        description="mean and deviation of latents in an export: keep: the published ones; measure: those measured in"
        " training; auto: measure if architecture is set",
    )
    activation_checkpointing: bool = Field(
        False, description="recompute activations in the backward; not for Wan"
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.new_only_steps and self.architecture is None:
            raise ValueError("new_only_steps needs architecture: without one there are no new weights")
        if self.frozen_encoder and self.architecture is not None:
            raise ValueError("frozen_encoder cannot go with architecture, whose encoder has new weights")
        return self

    @property
    def measures_statistics(self) -> bool:
        """True if an export carries measured latent statistics."""
        return self.statistics == "measure" or (self.statistics == "auto" and self.architecture is not None)


class TermConfig(Settings):
    """One weighted term of the loss."""

    weight: float = Field(1.0, ge=0, description="factor of the term")
    start_step: int = Field(1, ge=1, description="first step, counted from 1, that includes the term")


class KlConfig(TermConfig):
    """Kullback-Leibler divergence of the posterior from the standard normal distribution."""

    weight: float = Field(1e-6, ge=0, description="factor of the term")
    per: Literal["element", "sample"] = Field(
        "element", description="reduction: mean over a latent's elements, or sum over them per sample"
    )


class LpipsConfig(TermConfig):
    """Learned perceptual similarity of frames (LPIPS); also reported for held-out clips."""

    network: Literal["vgg", "alex", "squeeze"] = Field(
        "vgg", description="network that computes the features"
    )
    backbone: Path = Field(
        description="weights of torchvision's vgg16, alexnet or squeezenet1_1: a .pth or .safetensors file"
    )

    @property
    def least_px(self) -> int:
        """Shortest frame side that the network accepts, in pixels."""
        return {"vgg": 16, "alex": 31, "squeeze": 17}[self.network]


class DiscriminatorOptimizerConfig(OptimizerConfig):
    """AdamW of the discriminator; weight decay acts on the weights of convolutions."""

    lr: float = Field(1e-4, gt=0, description="learning rate after the warm-up")
    betas: tuple[Decay, Decay] = Field((0.5, 0.9), description="decay rates of the two moment averages")
    weight_decay: float = Field(0.0, ge=0, description="decay per unit of learning rate")


class GanConfig(TermConfig):
    """Adversarial term: a spatio-temporal patch discriminator, trained beside the tokenizer."""

    weight: float = Field(0.1, ge=0, description="factor of the term")
    loss: Literal["hinge", "vanilla"] = Field("hinge", description="adversarial loss of both networks")
    warmup_steps: int = Field(
        0, ge=0, description="steps before start_step in which the discriminator alone trains"
    )
    adaptive: bool = Field(
        False,
        description="scale the term by the ratio of gradients at the decoder's last layer in the previous step",
    )
    r1: float = Field(0.0, ge=0, description="weight of the R1 gradient penalty on real clips; 0: none")
    lecam: float = Field(
        0.0, ge=0, description="weight of the LeCam regularization of the discriminator; 0: none"
    )
    channels: int = Field(64, ge=8, multiple_of=8, description="channels of the discriminator's first layer")
    layers: int = Field(3, ge=1, description="layers of the discriminator that halve time and space")
    optimizer: DiscriminatorOptimizerConfig = DiscriminatorOptimizerConfig()

    @property
    def least_px(self) -> int:
        """Shortest frame side that the discriminator accepts, in pixels."""
        return 3 << self.layers

    @property
    def first_step(self) -> int:
        """First step that trains the discriminator."""
        return max(1, self.start_step - self.warmup_steps)


class LossesConfig(Settings):
    """Loss of a clip: the sum of these terms; null omits a term."""

    mse: TermConfig | None = Field(TermConfig(), description="mean squared error of pixels in [-1, 1]")
    l1: TermConfig | None = Field(None, description="mean absolute error of pixels in [-1, 1]")
    kl: KlConfig | None = KlConfig()
    lpips: LpipsConfig | None = None
    gan: GanConfig | None = None

    @model_validator(mode="after")
    def _pixels_count_from_the_beginning(self) -> Self:
        compared = [term for term in (self.mse, self.l1) if term]
        if not any(term.weight and term.start_step == 1 for term in compared):
            raise ValueError("mse or l1 must count from step 1 on: no other term says what a clip looks like")
        return self


class VaeOptimizerConfig(OptimizerConfig):
    """AdamW of the tokenizer; weight decay acts on the weights of linear and convolution layers.

    Biases and gains of norms are not decayed.
    """

    lr: float = Field(1e-5, gt=0, description="learning rate after the warm-up")
    weight_decay: float = Field(0.0, ge=0, description="decay per unit of learning rate")


class VaeScheduleConfig(ScheduleConfig):
    """Linear warm-up, then a cosine down to ``min_lr_ratio``, for tokenizer and discriminator."""

    total_steps: int = Field(10_000, ge=1, description="optimizer steps of the run")
    warmup_steps: int = Field(500, ge=0, description="steps over which the learning rate rises")


class VaeTrainConfig(Settings):
    """Configuration of fine-tuning one tokenizer; the clip stream is configured beside it."""

    # What runs of other models choose: here every rank has all state, and no cost model plans the steps.
    parallel: ClassVar[ParallelConfig] = ParallelConfig()
    recalibrate: ClassVar[RecalibrateConfig | None] = None

    kind: Literal["vae"] = "vae"
    denominator: Literal["step", "epoch"] = Field(
        "epoch",
        description="divisor of a clip's gradient. epoch: mean clips of all steps, so that all clips count alike. step:"
        " clips of its step, so that clips of small steps weigh more",
    )
    model: VaeModelConfig
    losses: LossesConfig = LossesConfig()
    optimizer: VaeOptimizerConfig = VaeOptimizerConfig()
    schedule: VaeScheduleConfig = VaeScheduleConfig()
    ema: EmaConfig | None = Field(
        None, description="keep an exponential moving average of the weights; null: none"
    )
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    seed: int = Field(0, description="seed of new weights, the discriminator and posterior samples")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of activations; weights stay float32"
    )
    lost_after_s: float = Field(
        60.0, gt=0, description="heartbeat timeout: a rank silent for this long is lost, and the run ends"
    )
    collective_timeout_s: float = Field(
        1800.0,
        gt=0,
        description="time after which a collective that does not end is an error: longer than anything that one rank"
        " does while others wait, such as a first compilation. Lost ranks end the run after lost_after_s",
    )
    max_nonfinite_steps: int = Field(
        5, ge=1, description="stop after this many consecutive steps with a non-finite gradient"
    )

    @model_validator(mode="after")
    def _terms_fit_the_model(self) -> Self:
        gan = self.losses.gan
        if gan and gan.adaptive and gan.start_step <= self.model.new_only_steps:
            raise ValueError(
                "losses.gan.adaptive looks at the decoder's last layer, which rests until new_only_steps are over:"
                f" set losses.gan.start_step to at least {self.model.new_only_steps + 1}"
            )
        if self.log.peak_tflops is not None:
            raise ValueError(
                "log.peak_tflops is for MFU, and operations of tokenizers are not counted: leave it out"
            )
        if self.model.frozen_encoder and self.losses.kl:
            raise ValueError(
                "losses.kl has nothing to train under model.frozen_encoder: set losses.kl to null"
            )
        return self

    @property
    def compression(self) -> Compression:
        """Pixels per latent along each axis."""
        model = self.model
        return Compression(frames=model.frames, height=model.height, width=model.width, causal=True)
