"""AdamW, and its state as named tensors."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from reelweave.train.config.optimizer import OptimizerConfig
from reelweave.train.step.adamw import CompactAdamW, Formats
from reelweave.train.step.moments import Bfloat16, EightBits, Wide, eight_bits_fit

STATE = ("step", "exp_avg", "exp_avg_sq")
"""Names of a weight's state; moments of 8 bits have scales beside them."""


def build_optimizer(
    config: OptimizerConfig, parameters: Mapping[str, torch.Tensor], decayed: Collection[str]
) -> torch.optim.Optimizer:
    """Build AdamW with weight decay on some of the parameters.

    Gradients and state exist from the start, as zeros, so that ranks exchange, and checkpoints hold, the same
    tensors at any step. On a GPU one kernel updates many weights (``fused``), and the step count lies there, too.

    Args:
        config: configuration of the optimizer.
        parameters: trained parameters by name.
        decayed: names of those that are decayed, as of `reelweave.train.step.weight_decay.decayed_weights`.
    """
    groups: list[dict[str, Any]] = [
        {"params": [parameter for name, parameter in parameters.items() if name in decayed]},
        {
            "params": [parameter for name, parameter in parameters.items() if name not in decayed],
            "weight_decay": 0.0,
        },
    ]
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    if config.moments == "float32":
        return _plain(config, groups)
    device = next((parameter.device for parameter in parameters.values()), torch.device("cpu"))
    return CompactAdamW(
        groups, _formats(config, device), config.lr, config.betas, config.eps, config.weight_decay
    )


def state_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the optimizer's state tensors, named PARAMETER.NAME."""
    return {
        f"{key}.{name}": tensor
        for key, parameter in parameters.items()
        for name, tensor in optimizer.state[parameter].items()
    }


def _plain(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.AdamW:
    parameters = [parameter for group in groups for parameter in group["params"]]
    on_gpu = all(parameter.is_cuda for parameter in parameters)
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=on_gpu or None,
    )
    for parameter in parameters:
        count = torch.zeros((), device=parameter.device if on_gpu else None)
        moments = {name: torch.zeros_like(parameter) for name in STATE[1:]}
        optimizer.state[parameter] = {"step": count, **moments}
    return optimizer


def _formats(config: OptimizerConfig, device: torch.device) -> Callable[[torch.Tensor], Formats]:
    wide, half = (Wide(), Wide()), (Bfloat16(), Bfloat16())
    if config.moments == "bfloat16":
        return lambda _: half
    eight = EightBits(signed=True, device=device), EightBits(signed=False, device=device)
    return lambda weight: eight if eight_bits_fit(weight) else wide
