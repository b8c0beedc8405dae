"""AdamW, and its state as named tensors."""

from collections.abc import Mapping
from typing import Any

import torch

from train.config.optimizer import OptimizerConfig

STATE = ("step", "exp_avg", "exp_avg_sq")


def build_optimizer(config: OptimizerConfig, parameters: Mapping[str, torch.Tensor]) -> torch.optim.AdamW:
    """Build AdamW with weight decay on matrices only, not on vectors (biases, scales of norms).

    Gradients and state exist from the start, as zeros, so that ranks exchange, and checkpoints hold, the same
    tensors at any step. On a GPU one kernel updates many weights (``fused``), and the step count lies there, too.
    """
    on_gpu = all(parameter.is_cuda for parameter in parameters.values())
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in parameters.values() if parameter.ndim >= 2]},
        {
            "params": [parameter for parameter in parameters.values() if parameter.ndim < 2],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=on_gpu or None,
    )
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
        moments = {name: torch.zeros_like(parameter) for name in STATE[1:]}
        count = torch.zeros((), device=parameter.device if on_gpu else None)
        optimizer.state[parameter] = {"step": count, **moments}
    return optimizer


def state_tensors(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return the optimizer's state tensors, named PARAMETER.NAME."""
    return {
        f"{key}.{name}": optimizer.state[parameter][name]
        for key, parameter in parameters.items()
        for name in STATE
    }
