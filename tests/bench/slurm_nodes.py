"""Slurm on this machine: its real controller, and nodes that are namespaces with a network address each.

A node has processes, a host name, a network address, shared memory and a folder of Ray of its own. It is lost as by a
power cut: its network goes first, then all of its processes by SIGKILL at once.
"""

import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_NETWORK = "10.77.0"
_WITHIN_S = 120.0  # for a node to come up, or to be found lost
_CONF = """
ClusterName=rehearsal
SlurmctldHost=controller({network}.254)
SlurmUser=root
SlurmdUser=root
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdTimeout=60
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_NODE = """
hostname "$1"
mount --bind "$2/hosts" /etc/hosts
mount -t tmpfs tmpfs /sys/fs/cgroup
mount -t tmpfs tmpfs /dev/shm
mkdir -p /tmp/ray
mount -t tmpfs tmpfs /tmp/ray
slurmd -D -N "$1" &
wait $!
"""


class SlurmNodes:
    """Cluster of nodes with a processor and two GPUs each, the latter by name only.

    It needs root and a network and mount namespace of its own, which its network interfaces stay in.

    Args:
        folder: New folder for configuration, state and logs.
        names: Names of the nodes.
    """

    def __init__(self, folder: Path, names: list[str]) -> None:
        self._folder, self._names = folder, names
        self._up: dict[str, subprocess.Popen[bytes]] = {}
        addresses = {name: f"{_NETWORK}.{number}" for number, name in enumerate(names, 1)}
        _make_network(addresses)
        for place in ("state", *names):
            (folder / place).mkdir(parents=True)
        nodes = "".join(
            f"NodeName={name} NodeAddr={address} CPUs=1 Gres=gpu:2\n" for name, address in addresses.items()
        )
        (folder / "slurm.conf").write_text(nodes + _CONF.format(network=_NETWORK, folder=folder))
        (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        for number in range(2):  # Slurm wants devices
            os.mknod(folder / f"gpu{number}", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        hosts = {"localhost": "127.0.0.1", "controller": f"{_NETWORK}.254", **addresses}
        (folder / "hosts").write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))
        (folder / "munge.key").write_bytes(os.urandom(64))
        (folder / "munge.key").chmod(0o600)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Let the controller and all nodes run."""
        subprocess.run(["mount", "--bind", self._folder / "hosts", "/etc/hosts"], check=True)
        subprocess.run(["hostname", "controller"], check=True)
        Path("/run/munge").mkdir(exist_ok=True)
        munged = ["munged", "--foreground", "--force", f"--key-file={self._folder}/munge.key"]
        munged += [f"--log-file={self._folder}/munged.log", f"--seed-file={self._folder}/munge.seed"]
        daemons = [self._start(munged, "munged")]
        try:
            wait_until(lambda: Path("/run/munge/munge.socket.2").exists(), "munged listens")
            daemons.append(self._start(["slurmctld", "-D"], "slurmctld"))
            for name in self._names:
                self.begin(name)
            yield
        finally:
            for process in (*self._up.values(), *reversed(daemons)):
                process.kill()
                process.wait()

    def begin(self, name: str) -> None:
        """Start a node, or one that was lost again, and wait until jobs can run on it."""
        subprocess.run(["ip", "link", "set", f"port-{name}", "up"], check=True)
        own = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = ["bash", "-c", _NODE, "node", name, str(self._folder)]
        self._up[name] = self._start(["ip", "netns", "exec", name, *own, *script], f"slurmd-{name}")
        wait_until(lambda: self.state(name) == "idle", f"{name} is idle")

    def lose(self, name: str) -> None:
        """Cut a node's network, then end all of its processes at once."""
        subprocess.run(["ip", "link", "set", f"port-{name}", "down"], check=True)
        process = self._up.pop(name)
        process.kill()  # with it its child, the first process of the node and so all others
        process.wait()

    def state(self, name: str) -> str:
        """Return the state of a node as Slurm sees it."""
        return self.ask("sinfo", "--noheader", f"--nodes={name}", "--format=%T").rstrip("*")

    def ask(self, *command: str) -> str:
        """Return what one of Slurm's programs prints; empty while the controller does not answer."""
        asked = subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return asked.stdout.strip()

    def _start(self, command: list[str], name: str) -> "subprocess.Popen[bytes]":
        with (self._folder / f"{name}.out").open("ab") as log:
            return subprocess.Popen(
                command, env=os.environ | self.environment, stdout=log, stderr=subprocess.STDOUT
            )


def _make_network(addresses: dict[str, str]) -> None:
    """Make a bridge with a network namespace for each node."""
    run = [
        "mount -t tmpfs tmpfs /run",  # names of network namespaces are mounts, which are this process's own
        "ip link set lo up",
        "ip link add bridge type bridge",
        f"ip addr add {_NETWORK}.254/24 dev bridge",
        "ip link set bridge up",
    ]
    for name, address in addresses.items():
        inside = f"ip -n {name}"
        run += [
            f"ip netns add {name}",
            f"ip link add port-{name} type veth peer name eth0 netns {name}",
            f"ip link set port-{name} master bridge up",
            f"{inside} link set lo up",
            f"{inside} addr add {address}/24 dev eth0",
            f"{inside} link set eth0 up",
            f"{inside} route add default via {_NETWORK}.254",  # Ray finds its address by it
        ]
    for command in run:
        subprocess.run(command.split(), check=True)


def wait_until(seen: Callable[[], bool], what: str) -> None:
    """Wait until something of the cluster is seen, for two minutes at most."""
    end = time.monotonic() + _WITHIN_S
    while not seen():
        assert time.monotonic() < end, f"not within {_WITHIN_S:g} s: {what}"
        time.sleep(0.3)
