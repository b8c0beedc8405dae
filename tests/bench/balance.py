"""How even planned steps are: every workload, policy, number of ranks and of microbatches, as one table.

    python -m tests.bench.balance [--steps 300]

Prints Markdown; plan times are for one core. A thirtieth of the steps are planned for 1,024 ranks.
"""

import argparse

from reelweave.loader.buckets.cost import PowerCost
from reelweave.loader.plan.microbatches import Microbatches
from reelweave.loader.plan.policy import POLICIES, Policy, StepLayout, budgets_of
from reelweave.loader.simulation.simulate import SimulatedPlan, planned_steps, simulate
from reelweave.loader.simulation.workloads import WORKLOADS

CASES = ((16, 1), (128, 3), (1024, 30))
"""Ranks, and what share of the steps is enough for them."""
COLUMNS = (
    *("workload", "ranks", "m", "policy", "idle", "compute CV", "token CV", "image share std"),
    *("idle, costs 2 / 5 / 10 % off", "plan ms"),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|")
    for name in WORKLOADS:
        for ranks, share in CASES:
            for microbatches in (1, 4, 8):
                for policy in POLICIES:
                    if microbatches > 1 or policy != "balanced":
                        found = planned(name, policy, ranks, microbatches, options.steps // share)
                        print(row(name, ranks, microbatches, policy, found), flush=True)


def planned(name: str, policy: Policy, ranks: int, microbatches: int, steps: int) -> SimulatedPlan:
    """Simulates one case."""
    workload = WORKLOADS[name]
    sizes = workload.batch_sizes(budgets_of(policy, workload.budgets))

    layout = StepLayout(ranks, microbatches, policy)

    def draw(step: int) -> Microbatches:
        return workload.draw(sizes, 0, step, layout.per_step, layout.run)

    return simulate(planned_steps(draw, layout, PowerCost(), steps))


def row(name: str, ranks: int, microbatches: int, policy: Policy, found: SimulatedPlan) -> str:
    """One line of the table."""
    metrics = found.metrics
    off = " / ".join(f"{100 * idle:.1f}" for idle in found.idle_with_error.values())
    cells = [
        name,
        ranks,
        microbatches,
        policy,
        f"{metrics.idle:.2%}",
        f"{metrics.compute_cv:.2%}",
        f"{metrics.token_cv:.1%}",
        f"{metrics.image_share_std:.3f}",
        off,
        f"{found.plan_ms_per_step:.1f}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
