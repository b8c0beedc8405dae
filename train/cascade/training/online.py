"""Online correction in training: updates costs and straggler factors from executed steps."""

from collections.abc import Sequence

from reelweave.train.cascade.menu import GroupMenu
from reelweave.train.cascade.online.around import around
from reelweave.train.cascade.online.correction import correct_problem, correction
from reelweave.train.cascade.online.measurements import MeasurementWindow, measurements
from reelweave.train.cascade.online.settled import Learned, SettledOrder
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Cascade, Problem
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.training.lookahead import PlacedPlan
from reelweave.train.cascade.training.timelines import RankRun
from reelweave.train.config.cascade import CorrectionConfig


class OnlineCorrection:
    """Online correction of plans, identical on all ranks, since they exchange their measurements.

    Args:
        config: strength of the correction; None: costs stay fixed.
        menu: groups that plans may use.
        per_node: ranks of a node.

    Attributes:
        found: results of measured steps so far.
    """

    def __init__(self, config: CorrectionConfig | None, menu: GroupMenu, per_node: int) -> None:
        self._config, self._menu = config, menu
        self._window = MeasurementWindow()
        self._order = SettledOrder(menu.gpus, per_node, config.reorders if config else 0)
        self.found = Learned(self._order.order)

    def summary(self) -> list[str]:
        """Return sentences for the log."""
        changes = self._order.changes
        orders = [f"groups made anew around stragglers: {changes} times"] if changes else []
        return [*self.found.correction.summary(), *orders]

    def observe(self, planned: PlacedPlan, runs: Sequence[Sequence[RankRun]]) -> None:
        """Update the correction by the measured runs of all ranks in a step."""
        if self._config:
            took = measurements(planned.problem, compute_times(planned.schedule, runs))
            self._window = self._window.with_iteration(took, self._config.iterations)
            estimate = correction(self._window, self._config)
            self.found = Learned(self._order.observe(estimate.slow), estimate)

    def plan_step(self, problem: Problem, seed: int, learned: Learned) -> PlacedPlan:
        """Plan a step; a pure function.

        Args:
            problem: planning problem by the cost model alone.
            seed: seed of the search.
            learned: results of measured steps.
        """
        estimate, order = learned.correction, learned.order
        believed = (
            correct_problem(problem, estimate.factors_of(problem.degrees_K)) if estimate.factors else problem
        )
        cascade_plan = plan(believed, seed, menu=self._menu)
        schedule = cascade_plan.schedule
        if estimate.slow:
            slow = {order.places[rank]: factor for rank, factor in estimate.slow.items()}
            schedule = around(believed, cascade_plan, slow, self._menu, seed)
        return PlacedPlan(cascade_plan, order.on_ranks(schedule), problem, order)


def compute_times(schedule: Schedule, runs: Sequence[Sequence[RankRun]]) -> Schedule:
    """Return compute times without waiting: from the latest begin of a cascade's ranks to the latest end."""
    starts: dict[Cascade, float] = {}
    ends: dict[Cascade, float] = {}
    for cascade, start_s, end_s in (run for rank_runs in runs for run in rank_runs):
        starts[cascade] = max(starts.get(cascade, start_s), start_s)
        ends[cascade] = max(ends.get(cascade, end_s), end_s)
    return Schedule.of(
        (run._replace(start_s=starts[run.cascade], end_s=ends[run.cascade]) for run in schedule.runs),
        schedule.gpus,
    )
