"""How far the mean over steps is from the mean over samples: the image share that training sees of `koala-wide`.

    python -m tests.bench.uniform [--samples 200000] [--steps 4000]

Plans whole epochs of a dataset with the mixture's shares, and prints Markdown: the share of images in a step, as a mean
over steps, where a step's samples are divided by how many they are (as trained) and by how many a step has on average.
"""

import argparse

import numpy as np

from reelweave.loader.buckets.assignment import Assignment
from reelweave.loader.buckets.unassigned import Unassigned
from reelweave.loader.paper.workloads import WORKLOADS, Workload
from reelweave.loader.plan.epoch_plan import plan_epoch
from reelweave.loader.plan.policy import StepLayout

ORDER = "dual_constraint"  # `balanced` has the same steps, where ranks wait once a step
LAYOUTS = (
    *(StepLayout(*size, ORDER) for size in ((1, 1), (8, 1), (8, 4), (16, 4), (128, 4), (1024, 4))),
    *(StepLayout(ranks, 4, "balanced", "slot", lookahead=4) for ranks in (16, 128)),
    *(StepLayout(ranks, 4, "same_bucket", "slot") for ranks in (16, 128)),
)
COLUMNS = ("ranks", "m", "policy", "samples of a step", "CV", "own mean", "std", "constant", "std")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--steps", type=int, default=4000)
    options = parser.parse_args()
    parts = assignment(WORKLOADS["koala-wide"], options.samples)
    images = np.isin(parts.bucket_of, [k for k, bucket in enumerate(parts.buckets) if bucket.frames == 1])
    print(f"images: {images.mean():.2%} of the samples\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for layout in LAYOUTS:
        print(row(parts, layout, options.steps), flush=True)


def assignment(workload: Workload, samples: int) -> Assignment:
    """A dataset with the mixture's shares, rounded down to whole samples."""
    lengths = workload.visual_tokens() + sum(workload.text_tokens) // 2
    counts = np.floor(np.array(workload.shares) * samples).astype(np.int64)
    return Assignment(
        buckets=workload.buckets,
        lengths=tuple(lengths.tolist()),
        batch_sizes=workload.batch_sizes(workload.budgets),
        budgets=workload.budgets,
        cost=workload.budgets.counted_cost,
        text_tokens=np.zeros(counts.sum(), np.int32),
        max_text_tokens=0,
        bucket_of=np.repeat(np.arange(len(counts)), counts),
        unassigned=Unassigned(np.zeros(0, np.int64), np.zeros(0, np.int32), ()),
    )


def row(parts: Assignment, layout: StepLayout, steps: int) -> str:
    """One line of the table, from so many steps, rounded up to whole epochs."""
    samples, images, epoch = [], [], 0
    while len(samples) < steps:
        plan = plan_epoch(parts, 0, epoch, layout)
        for step in range(len(plan)):
            members = plan.placed(step)[0]
            members = members[members < len(plan.turns) - plan.fillers]
            size = plan.runs(members).size
            samples.append(size.sum())
            images.append(size[plan.images(members)].sum())
        epoch += 1
    n_T, images_T = np.array(samples), np.array(images)
    own_T, constant_T = images_T / n_T, images_T / n_T.mean()
    cells = [
        layout.ranks,
        layout.microbatches,
        "in order" if layout.policy == ORDER else f"{layout.policy}, slots",
        f"{n_T.mean():.0f}",
        f"{n_T.std() / n_T.mean():.2f}",
        f"{own_T.mean():.1%} +- {own_T.std() / np.sqrt(len(own_T)):.1%}",
        f"{own_T.std():.2f}",
        f"{constant_T.mean():.1%}",
        f"{constant_T.std():.2f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
