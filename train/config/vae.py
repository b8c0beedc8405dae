"""The configuration of a tokenizer's fine-tuning; importing it loads no torch."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, Field, model_validator

from loader.tokens import Compression
from train.config.checkpoint import CheckpointConfig
from train.config.log import LogConfig
from train.config.optimizer import EmaConfig, OptimizerConfig, ScheduleConfig


class VaeModelConfig(BaseModel, frozen=True, extra="forbid"):
    """A causal 3D VAE of diffusers: as it was published, or of a changed architecture that begins with its weights."""

    name: str = Field(
        description="name of a pipeline or VAE on the Hugging Face hub, or a local folder of either"
    )
    subfolder: str = Field(
        "vae", description="of the pipeline; a local folder that is the VAE's own needs none"
    )
    architecture: Path | None = Field(
        None,
        description="JSON file of diffusers in place of the VAE's config.json; weights that fit are taken, the others"
        " drawn by seed; null: the architecture stays",
    )
    new_only_steps: int = Field(
        0,
        ge=0,
        description="steps of the beginning in which weights that were taken rest; needs architecture",
    )
    frozen_encoder: bool = Field(
        False, description="train the decoder alone: latents, and models trained on them, stay valid"
    )
    frames: int = Field(
        4, ge=1, description="video frames per latent frame, as the architecture has them; checked"
    )
    height: int = Field(8, ge=1, description="pixel rows per latent row; checked")
    width: int = Field(8, ge=1, description="pixel columns per latent column; checked")
    statistics: Literal["auto", "keep", "measure"] = Field(
        "auto",
        description="mean and deviation of latents that an export tells: the published ones, or those measured in"
        " training; auto measures where there is an architecture of its own",
    )
    activation_checkpointing: bool = Field(
        False, description="compute activations again in the backward; not for Wan"
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
        """Whether an export tells measured statistics of the latents."""
        return self.statistics == "measure" or (self.statistics == "auto" and self.architecture is not None)


class TermConfig(BaseModel, frozen=True, extra="forbid"):
    """A term of the loss."""

    weight: float = Field(1.0, ge=0, description="factor of the term")
    start_step: int = Field(1, ge=1, description="first step, counted from 1, in which the term counts")


class KlConfig(TermConfig, frozen=True, extra="forbid"):
    """Kullback-Leibler divergence of the posterior from the standard normal distribution."""

    weight: float = Field(1e-6, ge=0, description="factor of the term")
    per: Literal["element", "sample"] = Field(
        "element", description="mean over a latent's elements, or their sum for each sample"
    )


class LpipsConfig(TermConfig, frozen=True, extra="forbid"):
    """Learned perceptual similarity of frames; also reported of held-out clips."""

    network: Literal["vgg", "alex", "squeeze"] = Field("vgg", description="whose features are compared")
    backbone: Path = Field(
        description="weights of torchvision's vgg16, alexnet or squeezenet1_1: a .pth or .safetensors file"
    )

    @property
    def least_px(self) -> int:
        """The shortest side of a frame that the network takes."""
        return {"vgg": 16, "alex": 31, "squeeze": 17}[self.network]


class DiscriminatorOptimizerConfig(OptimizerConfig, frozen=True, extra="forbid"):
    """AdamW of the discriminator; weight decay acts on matrices only."""

    lr: float = Field(1e-4, gt=0, description="learning rate after the warm-up")
    betas: tuple[float, float] = Field((0.5, 0.9), description="decay of the two moment averages")
    weight_decay: float = Field(0.0, ge=0, description="decay per unit of learning rate")


class GanConfig(TermConfig, frozen=True, extra="forbid"):
    """A discriminator of patches in space and time, trained beside the tokenizer, and the wish to fool it."""

    weight: float = Field(0.1, ge=0, description="factor of the term")
    loss: Literal["hinge", "vanilla"] = Field("hinge", description="of the discriminator and against it")
    warmup_steps: int = Field(
        0, ge=0, description="steps before start_step in which the discriminator learns alone"
    )
    adaptive: bool = Field(
        False,
        description="weigh the term by the ratio of gradients at the decoder's last layer, of the step before",
    )
    r1: float = Field(
        0.0, ge=0, description="factor of the squared gradient of its verdict on real clips; 0: none"
    )
    lecam: float = Field(
        0.0, ge=0, description="factor of the distance to what it said of the other kind; 0: none"
    )
    channels: int = Field(64, ge=8, multiple_of=8, description="of the discriminator's first layer")
    layers: int = Field(3, ge=1, description="its layers that halve time and space")
    optimizer: DiscriminatorOptimizerConfig = DiscriminatorOptimizerConfig()

    @property
    def least_px(self) -> int:
        """The shortest side of a frame that the discriminator takes."""
        return 3 << self.layers

    @property
    def first_step(self) -> int:
        """The first step in which the discriminator learns."""
        return max(1, self.start_step - self.warmup_steps)


class LossesConfig(BaseModel, frozen=True, extra="forbid"):
    """The loss of a clip: the sum of these terms; null leaves one out."""

    mse: TermConfig | None = Field(TermConfig(), description="squared error of pixels in [-1, 1], their mean")
    l1: TermConfig | None = Field(None, description="absolute error of pixels in [-1, 1], their mean")
    kl: KlConfig | None = KlConfig()
    lpips: LpipsConfig | None = None
    gan: GanConfig | None = None

    @model_validator(mode="after")
    def _pixels_count_from_the_beginning(self) -> Self:
        compared = [term for term in (self.mse, self.l1) if term]
        if not any(term.weight and term.start_step == 1 for term in compared):
            raise ValueError("mse or l1 must count from step 1 on: no other term says what a clip looks like")
        return self


class VaeOptimizerConfig(OptimizerConfig, frozen=True, extra="forbid"):
    """AdamW of the tokenizer; weight decay acts on matrices only."""

    lr: float = Field(1e-5, gt=0, description="learning rate after the warm-up")
    weight_decay: float = Field(0.0, ge=0, description="decay per unit of learning rate")


class VaeScheduleConfig(ScheduleConfig, frozen=True, extra="forbid"):
    """Linear warm-up, then a cosine down to ``min_lr_ratio``; of tokenizer and discriminator."""

    total_steps: int = Field(10_000, ge=1, description="optimizer steps of the run")
    warmup_steps: int = Field(500, ge=0, description="steps over which the learning rate rises")


class VaeTrainConfig(BaseModel, frozen=True, extra="forbid"):
    """One fine-tuning of a tokenizer; the clips come as a stream beside it."""

    kind: Literal["vae"] = "vae"
    model: VaeModelConfig
    losses: LossesConfig = LossesConfig()
    optimizer: VaeOptimizerConfig = VaeOptimizerConfig()
    schedule: VaeScheduleConfig = VaeScheduleConfig()
    ema: EmaConfig | None = Field(None, description="keep an average of the weights; null keeps none")
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()
    seed: int = Field(0, description="decides new weights, the discriminator's, and the posterior's samples")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: a GPU if there is one")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of activations, not of weights")
    lost_after_s: float = Field(
        60.0, gt=0, description="a rank without a sign of life for so long counts as lost, and the run ends"
    )
    max_nonfinite_steps: int = Field(5, ge=1, description="stop after so many in a row")

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
