import json
from itertools import pairwise
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.schedule import Schedule
from reelweave.train.cascade.simulation.cases import arachne
from reelweave.train.cascade.simulation.simulate import Noise, execute
from reelweave.train.cascade.simulation.timeline import Panel, page, picture, spans_told, trace

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def panels() -> list[Panel]:
    schedule = plan(arachne()).schedule
    executed = execute(schedule, Noise().factors(schedule, np.random.default_rng(0)))
    return [Panel("planned", schedule), Panel("executed", executed)]


def test_a_trace_has_a_track_for_each_gpu(panels):
    events = json.loads(json.dumps(trace(panels, 8)))["traceEvents"]
    for process, panel in enumerate(panels):
        own = [event for event in events if event["pid"] == process]
        slices = [event for event in own if event["ph"] == "X"]
        assert len(slices) == sum(len(run.gpus) for run in panel.schedule.runs)
        assert {event["tid"] for event in slices} == set(range(16))
        assert sum(event["dur"] for event in slices) == pytest.approx(panel.schedule.busy_s * 1e6)
        for gpu in range(16):
            track = sorted((one for one in slices if one["tid"] == gpu), key=lambda event: event["ts"])
            assert all(one["ts"] + one["dur"] <= other["ts"] + 1 for one, other in pairwise(track))
        named = {event["tid"]: event["args"]["name"] for event in own if event["name"] == "thread_name"}
        assert named[9] == "GPU 9 (node 1)"
    assert any(event["name"].startswith("DiT 3 (k=") for event in events)


def test_arrows_of_a_trace_begin_and_end_in_slices(panels):
    events = trace(panels, 8)["traceEvents"]
    arrows = {}
    for event in events:
        if event["ph"] in "sf":
            arrows.setdefault(event["id"], {})[event["ph"]] = event
            assert any(
                one["ph"] == "X"
                and (one["pid"], one["tid"]) == (event["pid"], event["tid"])
                and one["ts"] <= event["ts"] < one["ts"] + one["dur"]
                for one in events
            )
    assert len(arrows) == 2 * 8  # text and VAE of 4 samples, in both panels
    assert all(ends["s"]["ts"] <= ends["f"]["ts"] for ends in arrows.values())


def test_a_picture_covers_what_runs(panels):
    root = ET.fromstring(picture(panels, "Arachne <16> & more", 8))
    assert root.find(f"{SVG}title").text == "Arachne <16> & more"
    assert "planned: " in root.find(f"{SVG}desc").text
    for panel, group in zip(panels, root.findall(f"{SVG}g"), strict=True):
        blocks = [one for one in group.iter(f"{SVG}rect") if one.get("class") == "cascade"]
        ground = next(one for one in group.iter(f"{SVG}rect") if one.get("class") == "idle")
        area = sum(float(one.get("width")) * float(one.get("height")) for one in blocks)
        scale = float(ground.get("width")) / max(one.schedule.makespan_s for one in panels)
        row = float(ground.get("height")) / 16
        assert area == pytest.approx(panel.schedule.busy_s * scale * row, rel=0.01)
        told = [one.text for one in group.iter(f"{SVG}title")]
        assert len(told) == len(panel.schedule.runs)
        assert any(one.startswith("DiT 3 (k=8), ") for one in told)


def test_a_page_escapes_and_loads_nothing(panels):
    html = page(panels, "<script>alert(1)</script>", 8)
    assert "<script" not in html
    assert "default-src 'none'" in html
    assert html.count("://") == html.count('xmlns="http://www.w3.org/2000/svg"') == 1


def test_nothing_to_show():
    ET.fromstring(picture([Panel("planned", Schedule((), 4))], "empty", 8))


def test_spans():
    assert spans_told((0, 1, 2, 3, 8)) == "0-3, 8"
