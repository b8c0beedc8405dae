"""What would cascades gain on a cluster of mine, with my mixture of images and videos? Draws steps of the mixture.

python examples/plan_cluster.py steps.json
reelweave plan --trace steps.json --topology dgx-h100 --noise 0.1 --timeline plan.html

The costs are HunyuanVideo's at 720p. Yours come from a profile on one node: docs/cascade.md, "Costs of your own model".
"""

import json
import random
import sys
from pathlib import Path

GPUS, GPUS_PER_NODE = 64, 8
SAMPLES, STEPS = 16, 2  # of all GPUs together in a step
SIZES = ((720, 1280), (1280, 720))
# (share of the samples, frames, batch)
MIXTURE = ((0.4, 1, 16), (0.3, 49, 1), (0.2, 81, 1), (0.1, 129, 1))


def drawn(chance: random.Random) -> dict[str, int]:
    """Return a microbatch of the mixture."""
    _, frames, batch = chance.choices(MIXTURE, [share for share, _, _ in MIXTURE])[0]
    height, width = chance.choice(SIZES)
    return {"frames": frames, "height": height, "width": width, "batch": batch}


chance = random.Random(0)  # noqa: S311
steps = [[drawn(chance) for _ in range(SAMPLES)] for _ in range(STEPS)]
Path(sys.argv[1]).write_text(json.dumps({"gpus": GPUS, "gpus_per_node": GPUS_PER_NODE, "steps": steps}))
