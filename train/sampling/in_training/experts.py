"""Two experts in a layout of training: the one in training, and the other one beside it."""

from pathlib import Path

import torch

from reelweave.loader.storage import StorageConfig
from reelweave.train.checkpoint.weights import Group
from reelweave.train.config.model import DiffusersConfig, ModelConfig
from reelweave.train.config.run import TrainConfig
from reelweave.train.models.bundle import Bundle
from reelweave.train.models.denoiser import Denoiser
from reelweave.train.models.encoders.stored import StoredEncoders
from reelweave.train.models.published.expert_pair import Experts
from reelweave.train.models.published.experts import HIGH_NOISE, other_expert
from reelweave.train.parallel.layout import layout_of, place
from reelweave.train.parallel.layouts.fsdp import FSDP, refresh
from reelweave.train.parallel.mesh import Ranks
from reelweave.train.sampling.experts.by_time import ExpertRunner
from reelweave.train.sampling.experts.loading import check_other
from reelweave.train.sampling.in_training.parts import load_part_, set_adapters_, to_sample
from reelweave.train.sampling.in_training.runner import training_runner
from reelweave.train.sampling.layout import ExpertLayout
from reelweave.train.sampling.prediction.predictor import ModelRunner
from reelweave.train.sampling.trained.load import compare_base, read_adapters, trained_weights


def other_expert_on(
    bundle: Bundle,
    config: TrainConfig,
    ranks: Ranks,
    lora: Path | None = None,
    checkpoint: str | None = None,
    weights: Group | None = None,
    storage: StorageConfig = StorageConfig(),  # noqa: B008 - frozen
) -> tuple[Denoiser, str]:
    """Return the expert for the other times, frozen, and what to call its weights; a collective.

    Under FSDP its ranks hold parts of it. In other layouts it is whole, in the memory of every rank's host.

    Args:
        bundle: modules of the one expert, for the shapes of the encoders.
        config: its configuration.
        ranks: ranks of the run.
        lora: adapters of the other expert, on its published weights.
        checkpoint: run or checkpoint of the other expert.
        weights: group of that checkpoint; None: the EMA if there is one.
        storage: configuration of its storage.

    Raises:
        UsageError: its folder is missing, or the adapters or the checkpoint are not its own.
    """
    assert isinstance(config.model, DiffusersConfig)
    expert_config = config.model_copy(update={"model": other_expert(config.model), "lora": None})
    # Where its weights come from: a checkpoint, published ones with adapters, or published ones.
    saved, adapters, name = None, None, ""
    if checkpoint is not None:
        saved, saved_config = trained_weights(checkpoint, weights, storage, ranks.world, encoders=False)
        check_other(config.modules, saved_config.modules, saved.uri)
        expert_config = saved_config.model_copy(
            update={"parallel": config.parallel, "dtype": config.dtype, "fp8": config.fp8}
        )
        name = f" + {saved.uri}"
    elif lora is not None:
        adapters = read_adapters(lora, other_expert(config.model))
        expert_config = expert_config.model_copy(update={"lora": adapters.config})
        compare_base(lora, adapters, expert_config.modules, ranks.world)
        name = f" + {lora}"
    expert_config = expert_config.model_copy(update={"parallel": to_sample(expert_config.parallel)})
    # Encoders are those of the first expert, so none is loaded again.
    empty_MD = torch.zeros(1, bundle.text.width)
    stored = StoredEncoders(bundle.tokenizer.channels, empty_MD, bundle.text.pooled_width)
    sharded = issubclass(layout_of(expert_config.parallel, ranks.mesh), FSDP)
    other = (
        place(expert_config.step, ranks, stored) if sharded else Bundle(expert_config.modules, stored=stored)
    )
    # Weights that are trained go over the published ones.
    if saved is not None:
        load_part_(saved, other, ranks)
    if adapters is not None:
        set_adapters_(other.dit, adapters.weights)
    refresh(other.dit, expert_config.fp8)
    return other.dit.eval().requires_grad_(False), name


def pair(
    trained: Denoiser,
    other: Denoiser,
    model: ModelConfig | DiffusersConfig,
    device: torch.device,
    together: bool | None,
) -> Experts:
    """Return both experts in their order.

    Args:
        trained: the expert that `model` names.
        other: the other one.
        model: configuration of `trained`.
        device: compute device.
        together: True if the device may hold both; None: as its memory allows.
    """
    assert isinstance(model, DiffusersConfig)
    high, low = (trained, other) if model.subfolder == HIGH_NOISE else (other, trained)
    if together is None:
        return Experts.on(high, low, high.times[0], device)
    return Experts(high, low, high.times[0], device, together)


def expert_runners(
    dit: Denoiser, ranks: Ranks, experts: Experts | None
) -> tuple[ModelRunner, ExpertLayout | None]:
    """Return the runner of a model, or those of two experts, on the ranks of a layout of training."""
    if experts is None:
        return training_runner(dit, ranks), None
    high, low = (
        ExpertRunner(training_runner(each, ranks), each, experts)
        for each in (experts.high_noise, experts.low_noise)
    )
    return high, ExpertLayout(experts, low)
