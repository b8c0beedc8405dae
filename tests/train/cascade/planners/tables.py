"""Problems from a cost table of our own, with the oddities of measured ones."""

import numpy as np

from reelweave.train.cascade.problem import Problem
from reelweave.train.cascade.simulation.cost_table import read_cost_table
from reelweave.train.cascade.simulation.trace import TraceBatch

_DEGREES = (1, 2, 4, 6, 8)


def _odd() -> str:
    lines = ["module,batch,frames,degree,seconds"]
    for batch, frames in ((1, 29), (1, 61), (1, 93), (1, 125), (2, 33), (3, 25), (6, 9)):
        size = batch * frames
        for degree in _DEGREES:
            vae = 0.2 * size / min(degree, 6) + (0.3 if degree == 8 else 0.05 * (frames % 5))
            lines.append(f"vae,{batch},{frames},{degree},{vae:.4f}")
            if degree > 1:
                crowded = 1 + 0.4 * (size / degree > 20)
                dit = crowded * size * (0.45 + 0.006 * frames) / degree + 0.1 * degree
                lines.append(f"dit,{batch},{frames},{degree},{dit:.4f}")
    return "\n".join(lines)


ODD = _odd()
"""A VAE that is slower with 8 GPUs than with 6, a DiT that is more than twice as slow near its memory's limit; CSV."""


def drawn_from_a_table(seed: int, samples: int = 4, gpus: int = 16) -> Problem:
    """Samples drawn evenly from the shapes of the table."""
    table = read_cost_table(ODD, "odd.csv")
    shapes = sorted(next(iter(table.by_shape.values())))
    chosen = np.random.default_rng(seed).integers(0, len(shapes), samples)
    return table.problem([TraceBatch(batch=shapes[one][0], frames=shapes[one][1]) for one in chosen], gpus)
