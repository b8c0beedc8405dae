"""Check the operators on the GPUs here, and report their provider."""

import argparse
import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence

import torch

from reelweave.loader.errors import RunError, UsageError
from reelweave.train.kernels.checks import check, check_qk
from reelweave.train.kernels.eager import EAGER
from reelweave.train.kernels.providers import PROVIDERS, choose_provider


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return 0 on success, 1 on failure, 2 on a wrong call."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except UsageError as error:
        return _fail(error, 2)
    except RunError as error:
        return _fail(error, 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m reelweave.train.kernels", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    checks = commands.add_parser("check", help="compare the operators on the GPUs here with float64")
    checks.add_argument(
        "--quick",
        action="store_true",
        help="a few cases of each operator, for tools that slow the kernels down",
    )
    checks.add_argument(
        "--start",
        action="store_true",
        help="nvrtc in the few cases that it must pass before it is used",
    )
    checks.add_argument(
        "--seconds",
        type=float,
        default=math.inf,
        metavar="S",
        help="start no further case after this time, for tools that slow the kernels down",
    )
    checks.set_defaults(run=_check)
    commands.add_parser("which", help="say who computes the operators here, and why").set_defaults(run=_which)
    return parser


def _check(options: argparse.Namespace) -> int:
    devices = _one_of_each()
    if not devices:
        raise RunError("there is no GPU to check on")
    if options.start:
        from reelweave.train.kernels.cuda.nvrtc_provider import KERNELS

        name, kernels = "nvrtc", KERNELS
    else:
        name, kernels = choose_provider().provider.name, choose_provider().kernels or EAGER
    cases: Sequence[check.Case | check_qk.PairCase] = [*check.cases(), *check_qk.cases()]
    # 13 is coprime to the numbers of choices that the cases combine.
    cases, right = check.START if options.start else cases[:: 13 if options.quick else 1], True
    ends = time.monotonic() + options.seconds
    for device in devices:
        tried, wrong = 0, 0
        for case in itertools.takewhile(lambda _: time.monotonic() < ends, cases):
            tried += 1
            for failure in check.failures(kernels, device, [case]):
                print(failure)
                wrong += 1
        count = f"{tried} cases" if tried == len(cases) else f"{tried} of {len(cases)} cases"
        print(f"{name} on {torch.cuda.get_device_name(device)}: {count}, {wrong} wrong", flush=True)
        right = right and not wrong and tried > 0
    return 0 if right else 1


def _which(_options: argparse.Namespace) -> int:
    print(f"{choose_provider().provider.name} ({choose_provider().reason})")
    for other in PROVIDERS:
        print(f"  {other.name}: {other.missing() or 'works'}")
    return 0


def _one_of_each() -> list[torch.device]:
    """Return one GPU of each architecture here."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = {torch.cuda.get_device_capability(index): torch.device("cuda", index) for index in range(count)}
    return list(devices.values())


def _fail(message: object, status: int) -> int:
    print(f"reelweave.train.kernels: {message}", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
