"""Process groups for tests that run on the CPU, and refuse what NCCL refuses, hangs on or computes wrongly.

In a rank, before the process group exists:

    from tests import strict_group
    strict_group.use()      # from here on a group for which no backend is named is strict

`Ranks.run(..., strict=True)` does so in every rank, and `STRICT_GROUP=1` in all ranks of all tests (`make strict`).
Gloo computes; what differs is what is allowed. A communicator of NCCL is a stream of the GPU, so a strict group has a
thread that runs its calls in order, one at a time. A result exists only after `wait`: until then the tensor holds nan.
Every rank writes its calls into the run's store, where the other ranks of a call compare it with theirs.

| module | what it refuses |
|---|---|
| `tensors.py` | tensors that were created on the host, are not contiguous, or have a dtype that NCCL lacks |
| `call.py` | results that nobody waited for; inputs and results that were written before `wait` |
| `ledger.py` | calls in another order on any two ranks, over all groups that both are in |
| `group.py` | calls of other kinds, sizes, dtypes, reductions or roots; barriers without a device |
| `group.py` | in a training step: objects, new groups, the first call of a group or of a pair of ranks |
| `lane.py` | sends without a receive, and two ranks that both send first, outside of a batch |

The error is a `Refused`, which names rank, group, call and line of this repository. Other ranks learn of it by the
store, and their calls end with the same words. Groups that name gloo, as those of the host do, stay gloo's.
"""

import torch.distributed as dist

from tests.strict_group.group import StrictGroup
from tests.strict_group.refused import Refused, in_step
from tests.strict_group.tensors import HostTensors

__all__ = ["Refused", "in_step", "use"]


def use() -> None:
    """Make every group of this process strict for which no backend is named, and follow its tensors on the host."""
    dist.Backend.register_backend("strict", StrictGroup.create, extended_api=True, devices=["cpu"])
    dist.Backend.default_device_backend_map["cpu"] = "strict"
    HostTensors.note()
