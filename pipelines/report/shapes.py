"""Measured shapes of a report: times of microbatches, as `reelweave bench shapes` writes them."""

from reelweave.loader.buckets.cost_fit import Timings, fit_linear_quadratic, read_timings
from reelweave.loader.buckets.memory_fit import fit_memory
from reelweave.loader.errors import UsageError
from reelweave.loader.plan.policy import BudgetsT
from reelweave.loader.storage import Storage

KEPT = "report/shapes.csv"
"""Path in a dataset of the shapes of its last report with ``--shapes``."""

MAX_BYTES = 256 << 10


def check_timings(text: str, name: str) -> Timings:
    """Return the timings of a file that a report can fit in seconds.

    Raises:
        UsageError: the file is too large, or no shape benchmark.
    """
    if len(text.encode()) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 10} KiB; keep some measurements of each shape")
    return read_timings(text, name)


def keep_shapes(folder: Storage, text: str, name: str) -> None:
    """Write measured shapes beside a dataset's page, for this report and later ones.

    Raises:
        UsageError: the file is too large, or no shape benchmark.
    """
    check_timings(text, name)
    folder.write(KEPT, text.encode())


def kept_timings(folder: Storage) -> Timings | None:
    """Return the timings that are kept with a dataset's report, None without any.

    Raises:
        UsageError: what is kept there is no shape benchmark.
    """
    info = folder.stat(KEPT)
    if info is None:
        return None
    if info.size > MAX_BYTES:
        raise UsageError(
            f"{folder.uri(KEPT)} is larger than {MAX_BYTES >> 10} KiB; give other --shapes, or delete it"
        )
    return check_timings(folder.read(KEPT).decode(errors="replace"), folder.uri(KEPT))


def with_shapes(
    budgets: BudgetsT, text: str, name: str, target_step_s: float | None, memory_gib: float | None
) -> BudgetsT:
    """Return budgets that follow from measured shapes.

    The fitted cost replaces B * S^p where it can be trusted and a target step time is given, or was set
    before. One that cannot be trusted changes nothing. M_mem follows from the measured peaks where the memory
    is given.

    Args:
        budgets: budgets before.
        text: content of the file.
        name: file name for messages.
        target_step_s: maximum seconds of a microbatch; None: as before.
        memory_gib: usable memory of a GPU; None leaves M_mem.

    Raises:
        UsageError: a number is not above 0, or the file cannot decide what is asked of it.
    """
    for option, value in (("--target-step-s", target_step_s), ("--memory-gib", memory_gib)):
        if value is not None and not 0 < value < 1e9:
            raise UsageError(f"{option} is {value}; it must be above 0")
    target = budgets.target_step_s if target_step_s is None else target_step_s
    changes: dict[str, object] = {}
    if target is not None:
        fit = fit_linear_quadratic(check_timings(text, name))
        if not fit.doubts:
            changes = {"cost": fit.cost, "target_step_s": target, "compute_budget": None}
    if memory_gib is not None:
        changes["memory_tokens"] = fit_memory(text, name).tokens(memory_gib)
    return type(budgets).model_validate({**dict(budgets), **changes})
