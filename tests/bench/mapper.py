"""What the mapper makes of plans of growing size, and in which time.

    python -m tests.bench.mapper

Prints Markdown. Cascade-seconds outside one node are what priority 1 counts, over all cascades that would fit into one;
GPU-seconds without a peer are priority 3; missed GPU-seconds are what DiTs do not share with what they need. Times are
of one core, the median of five.
"""

import time
from statistics import median

from reelweave.train.cascade.paper.cases import arachne, drawn_at_720p
from reelweave.train.cascade.placement.levels import NEITHER
from reelweave.train.cascade.placement.mapper import place, placed_cost
from reelweave.train.cascade.placement.topology import PRESETS
from reelweave.train.cascade.planners.plan import plan

CASES = ((4, 16), (16, 16), (16, 64), (64, 256), (256, 1024))


def main() -> None:
    print(
        "| samples, GPUs | GPUs by | outside one node s | imbalance | off rail | distance | missed | hops | ms |"
    )
    print("|---" * 9 + "|")
    for samples, gpus in CASES:
        problem = arachne() if samples == 4 else drawn_at_720p(samples, gpus, seed=0)
        schedule, topology = plan(problem).schedule, PRESETS["dgx-h100"].holding(gpus)
        spent = []
        for _ in range(5):
            began = time.process_time()
            placed = place(schedule, topology)
            spent.append((time.process_time() - began) * 1e3)
        named = {"lowest number": place(schedule, topology, NEITHER), "planner": schedule, "mapper": placed}
        for name, found in named.items():
            cells = " | ".join(f"{level / 1e6:,.0f}" for level in placed_cost(found, topology))
            told = f"{median(spent):.0f}" if name == "mapper" else ""
            print(f"| {samples}, {gpus} | {name} | {cells} | {told} |", flush=True)


if __name__ == "__main__":
    main()
