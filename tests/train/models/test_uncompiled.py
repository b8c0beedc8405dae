import subprocess
import sys

import torch

from reelweave.train.models.uncompiled import uncompiled
from tests.thorough import thorough


@uncompiled
def doubled(x: torch.Tensor, *, times: int) -> torch.Tensor:
    for _ in range(times):
        x = x.sinh() + x
    return x


def test_no_graph_holds_it_nor_any_part_of_it():
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    def around(x):
        return doubled(x.cos(), times=2).tan()

    x = torch.linspace(-1, 1, 5)
    assert torch.equal(torch.compile(around, backend=keep)(x), around(x))
    assert [[node.target for node in graph.graph.nodes if node.op == "call_method"] for graph in graphs] == [
        ["cos"],
        ["tan"],
    ]


@thorough
def test_a_process_that_compiles_nothing_imports_no_compiler():
    code = "import sys, reelweave.train.sampling.generate; sys.exit('torch._dynamo' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
