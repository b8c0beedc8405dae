"""The training step never makes the host wait for the device, except where it reads the step's numbers."""

import json

import pytest

from tests.thorough import but, chosen
from tests.train.loop.worlds import host_waits

NAMES = (
    "dit",
    "st-dit",
    "mmdit",
    "dit-pack",
    "mmdit-pack",
    "stored",
    "first-frames",
    "edm",
    "ddpm",
)

ALWAYS = ("mmdit-pack", "stored")
OFTEN = ("dit", "first-frames")


@pytest.fixture(scope="module")
def found(request, ranks, tmp_path_factory):
    """Waits and losses of each case; the emulated device can be registered in a process of its own alone."""
    out = tmp_path_factory.mktemp("waits") / "found.json"
    ended = ranks.run(host_waits, 1, str(out), chosen(request, "name"))
    assert ended.codes == [0], ended.errors
    return json.loads(out.read_text())


@pytest.mark.parametrize("name", but(ALWAYS, NAMES, OFTEN))
def test_a_step_reads_and_copies_nothing_that_the_host_waits_for(found, name):
    assert not found[name]["waits"], "\n".join(found[name]["waits"])
    assert found[name]["sent"] > 0


@pytest.mark.parametrize("name", but(ALWAYS, NAMES, OFTEN))
def test_a_step_reads_its_numbers_at_once(found, name):
    """Three steps: losses and norm come to the host in one transfer each."""
    assert sum(found[name]["reads"].values()) == 3, found[name]["reads"]


@pytest.mark.parametrize("name", but(ALWAYS, NAMES, OFTEN))
def test_losses_on_the_device_are_those_of_the_cpu_to_the_bit(found, name):
    assert found[name]["emulated"] == found[name]["cpu"]
    assert len(found[name]["cpu"]) == 3


def test_waits_are_found(found):
    """The checker itself: each kind of wait in a step of its own."""
    assert found["checker"] == ["copy", "copy", "copy", "read", "read", "read", "shape", "shape"]
