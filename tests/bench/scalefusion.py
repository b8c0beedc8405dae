"""ScaleFusion against blocking exchanges on slowed links: two or more processes, real computation, real messages.

python -m tests.bench.scalefusion

Every all-to-all takes a time for itself and for each byte in a thread of its own, in which nothing is computed: the
link. It is chosen such that DSP spends the asked share of its time waiting for it.
"""

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import reelweave.train.parallel.context.ulysses as ulysses_module
from reelweave.train.config.model import STDiTConfig
from reelweave.train.distributed.world import join
from reelweave.train.models.build import build_denoiser
from reelweave.train.sampling.prediction.predictor import Conditions
from reelweave.train.sampling.scalefusion.jagged import TokenDivision, pass_bytes
from reelweave.train.sampling.scalefusion.measure import measure_costs
from reelweave.train.sampling.scalefusion.runner import ScaleFusion
from reelweave.train.sampling.scalefusion.schedule import DEFAULT, DSP, Slicing
from reelweave.train.sampling.scalefusion.simulate import choose, simulate
from tests.bench import scalefusion as this_module
from tests.train.ranks import Ranks
from tests.train.sampling.scalefusion.ulysses import UlyssesSTDiT

MODEL = STDiTConfig(hidden=192, heads=4, layers=4)
FRAMES, ROWS = 16, 20
CHANNELS, TEXT = 4, 16
EXCHANGE_S = 1e-3


class Link:
    """Link of one rank: messages one after the other."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.byte_s, self.exchange_s = group, 0.0, 0.0
        self._line = ThreadPoolExecutor(1)

    def start(self, rows, received, send, receive):
        return self._line.submit(self._carry, rows, received, list(send), list(receive)).result

    def _carry(self, rows, received, send, receive) -> None:
        away = sum(send) - send[dist.get_rank(self.group)]
        time.sleep(self.exchange_s + self.byte_s * away * rows[:1].nbytes)
        dist.all_to_all_single(received, rows, receive, send, group=self.group)

    def exchange_rows(self, x_NK, send, receive, group):
        """`exchange.exchange_rows` over this link, for Ulysses."""
        received = x_NK.new_empty((sum(receive), *x_NK.shape[1:]))
        self.start(x_NK.contiguous(), received, send, receive)()
        return received


def measure(out: str, share: float, repeats: int) -> None:
    """Measure all methods in turn, on one rank."""
    torch.set_num_threads(1)
    with join("cpu") as world:
        torch.manual_seed(0)
        dit = build_denoiser(MODEL, CHANNELS, TEXT).requires_grad_(False)
        for parameter in dit.parameters():
            torch.nn.init.normal_(parameter, std=0.05)
        group, link = dist.group.WORLD, Link(dist.group.WORLD)
        ulysses_module.exchange_rows = link.exchange_rows
        asked = (
            torch.randn(1, CHANNELS, FRAMES, 2 * ROWS, 2 * ROWS),
            torch.tensor([0.5]),
            Conditions(torch.randn(1, 8, TEXT), torch.ones(1, 8, dtype=torch.bool)),
        )

        def timed(runner) -> float:
            dist.barrier()
            began = time.perf_counter()
            runner(*asked)
            dist.barrier()
            return time.perf_counter() - began

        dsp = ScaleFusion(dit, group, DSP, link)
        free = torch.tensor(median(timed(dsp) for _ in range(repeats + 1)))
        dist.all_reduce(free, dist.ReduceOp.MAX)
        sent = pass_bytes(
            TokenDivision.of(FRAMES, ROWS**2, DSP, world.size), 0, MODEL.layers, MODEL.hidden * 4, 0
        )
        link.exchange_s = EXCHANGE_S
        link.byte_s = max(0.0, float(free) * share / (1 - share) - 2 * MODEL.layers * EXCHANGE_S) / sent
        costs = measure_costs(dsp, *asked)
        chosen, _ = choose(FRAMES, ROWS**2, world.size, MODEL.layers, costs)
        runners = {
            "DSP": dsp,
            "Ulysses": UlyssesSTDiT(dit, group),
            "first algorithm alone": ScaleFusion(dit, group, Slicing(4, 4, 0, 0), link),
            "the paper's numbers": ScaleFusion(dit, group, DEFAULT, link),
            "chosen numbers": ScaleFusion(dit, group, chosen, link),
        }
        took: dict[str, list[float]] = {name: [] for name in runners}
        for _ in range(repeats):
            for name, runner in runners.items():
                took[name].append(timed(runner))
        rows = []
        for name, runner in runners.items():
            slicing = getattr(runner, "slicing", None)
            foretold = None
            if slicing:
                division = TokenDivision.of(FRAMES, ROWS**2, slicing, world.size)
                foretold = simulate(slicing, division, MODEL.layers, costs).seconds
            ratio = median(whole / own for whole, own in zip(took["DSP"], took[name], strict=True))
            rows.append((name, slicing, median(took[name]), ratio, foretold))
        found = {"free": float(free), "sent": sent, "rows": rows}
    if world.rank == 0:
        Path(out).write_text(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2, help="processes, one core each")
    parser.add_argument(
        "--share", type=float, nargs="+", default=[0.34, 0.44], help="of DSP's time, for the link"
    )
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    print("| link's share of DSP | method | N_T, N_S, L_T, L_S | s | DSP / it | simulated DSP / it |")
    print("| --- | --- | --- | --- | --- | --- |")
    with Ranks() as ranks, tempfile.TemporaryDirectory() as folder:
        for share in options.share:
            out = Path(folder) / str(share)
            ended = ranks.run(this_module.measure, options.ranks, str(out), share, options.repeats)
            assert ended.codes == [0] * options.ranks, ended.errors
            found = json.loads(out.read_text())
            dsp = found["rows"][0][4]
            print(f"| {share:.0%} | nothing to send | | {found['free']:.2f} | | |")
            for name, slicing, seconds, ratio, foretold in found["rows"]:
                numbers = ", ".join(map(str, slicing or []))
                told = f"{dsp / foretold:.2f}" if foretold else ""
                print(f"| | {name} | {numbers} | {seconds:.2f} | {ratio:.2f} | {told} |")


if __name__ == "__main__":
    main()
