"""Problems to plan, of all kinds."""

import numpy as np

from reelweave.train.cascade.problem import Module, Problem


def random_problem(seed: int, most_samples: int = 19, most_gpus: int = 39) -> Problem:
    """Samples of any number on GPUs of any number, with and without text encoder and VAE, and odd degrees."""
    draw = np.random.default_rng(seed)
    samples, gpus = int(draw.integers(1, most_samples + 1)), int(draw.integers(1, most_gpus + 1))
    degrees_K = np.array([1, *sorted(draw.choice(np.arange(2, 17), 4, replace=False))])
    work_SM1 = draw.lognormal(0, 1, (samples, 3))[:, :, None]
    seconds_SMK = work_SM1 * (1 / degrees_K + draw.uniform(0, 0.02))
    seconds_SMK[:, Module.TEXT, 1:] = np.inf
    seconds_SMK[draw.random(samples) < 0.3, Module.VAE] = np.inf
    seconds_SMK[draw.random(samples) < 0.3, Module.TEXT] = np.inf
    memory_SMK = draw.lognormal(0, 1, (samples, 3))[:, :, None] / degrees_K
    usable_SMK = np.isfinite(seconds_SMK) & (degrees_K <= gpus)
    least_SM = np.where(usable_SMK, memory_SMK, np.inf).min(axis=2)
    return Problem(gpus, degrees_K, seconds_SMK, memory_SMK, float(least_SM[np.isfinite(least_SM)].max()))
