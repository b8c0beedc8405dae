"""Training by cascades on four ranks makes the steps of one process."""

import json
import signal

import pytest
import torch
import yaml

from reelweave.loader.buckets.assignment import BucketConfig
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.thorough import but, chosen, thorough
from tests.train.cascade.training import text_runs
from tests.train.cascade.training.runs import (
    CASES,
    STEPS,
    command,
    config_of,
    killed,
    train_case,
    train_cases,
)
from tests.train.clips import tiny_config
from tests.train.published import publish_text
from tests.train.saved import losses, metrics


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A frozen encoder."""
    said = publish_text(tmp_path_factory.mktemp("text"))
    return said | {"kind": "transformers", "max_text_tokens": 4}


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text, request):
    """The cases in this process, without cascades; those of one configuration once."""
    outs, made = {}, {}
    try:
        for name in chosen(request, "name"):
            config = config_of(CASES[name], "static").model_dump_json(), "text" in name
            if config not in made:
                made[config] = tmp_path_factory.mktemp("alone")
                train_case(made[config], name, text)
            outs[name] = made[config]
    finally:
        torch.set_default_dtype(torch.float32)
    return outs


@pytest.fixture(scope="module")
def runs(tmp_path_factory, text, ranks, request):
    out = tmp_path_factory.mktemp("cascades")
    # A world at a time has some seconds for each of its cases.
    names = chosen(request, "name")
    for first in range(0, len(names), 4):
        own = names[first : first + 4]
        train = text_runs.train_cases if any("text" in name for name in own) else train_cases
        ended = ranks.run(train, 4, str(out), text, own)
        assert ended.codes == [0] * 4, ended.errors
        (out / f"said-{first}.txt").write_text(ended.errors[0])
    return out


ALWAYS = (
    "a rank without a DiT",
    "zero packs",
    "slow rank",
    "sharded mmdit",
)
"""Each kind of layout and batch once; the last one goes on statically."""


OFTEN = ("frozen text, resumed", "static, then sharded")


@pytest.mark.parametrize("name", but(ALWAYS, CASES, OFTEN))
def test_cascades_make_the_steps_of_one_process(alone, runs, name):
    own, expected = metrics(runs / name), metrics(alone[name])
    rel = 1e-5 if "text" in name else 1e-10
    assert len(own) == len(expected) == STEPS
    for key in ("step", "samples", "tokens", "flops", "skipped", "loss", "grad_norm", "lr"):
        assert [line[key] for line in own] == pytest.approx([line[key] for line in expected], rel=rel), key


@pytest.mark.parametrize("name", ["slow rank"])
def test_groups_are_made_anew_around_a_slow_rank_once(runs, name):  # its name chooses the case
    said = "".join(path.read_text() for path in sorted(runs.glob("said-*.txt")))
    assert "GPU 1 takes" in said
    assert "groups made anew around stragglers: 1 times" in said


@thorough
def test_a_lost_rank_ends_the_others_and_the_run_goes_on(ranks, tmp_path):
    ended = ranks.run(killed, 2, str(tmp_path / "whole"), -1, 0)
    assert ended.codes == [0, 0], ended.errors
    ended = ranks.run(killed, 2, str(tmp_path / "broken"), 1, 3)
    assert ended.codes == [1, -signal.SIGKILL], ended.errors
    assert "rank 1 was lost" in ended.errors[0]
    ended = ranks.run(killed, 2, str(tmp_path / "broken"), -1, 0)
    assert ended.codes == [0, 0], ended.errors
    assert losses(tmp_path / "broken") == pytest.approx(losses(tmp_path / "whole"), rel=1e-5)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clips")
    clips = [
        (write_video(folder / f"{frames}.mp4", (frames,), size=size).read_bytes(), frames, size)
        for frames, size in ((6, (80, 64)), (10, (80, 64)), (7, (64, 80)))
    ]
    return write(folder / "set", [make_sample(f"key{n:02}", *clips[n % 3]) for n in range(24)])


@thorough
def test_the_command_trains_by_cascades_and_draws_them(dataset, ranks, tmp_path):
    config = tiny_config(total_steps=4)
    buckets = BucketConfig(
        frames=(1, 5, 9),
        sizes=((16, 24), (24, 16)),
        compression=config.compression,
        max_text_tokens=9,
        memory_tokens=300,
    )
    run = {
        "dataset": str(dataset),
        "out": str(tmp_path / "static"),
        "stream": {"buckets": buckets.model_dump(mode="json"), "workers": 1, "prefetch": 1},
        "train": config.model_dump(mode="json"),
    }
    path = tmp_path / "train.yaml"
    path.write_text(yaml.safe_dump(run))
    # A step of 4 microbatches on one rank holds the samples of one of 2 on each of 2 ranks.
    assert command(str(path), "stream.microbatches=4") == 0
    changes = ["train.parallel.schedule=cascade", "train.cascade.timeline_every_steps=2"]
    changes += ["stream.microbatches=2", f"out={tmp_path / 'cascades'}"]
    ended = ranks.run(command, 2, str(path), *changes)
    assert ended.codes == [0, 0], ended.errors
    assert losses(tmp_path / "cascades") == pytest.approx(losses(tmp_path / "static"), rel=1e-5)
    # No lookahead has the first step.
    assert "1 of 2 steps planned ahead" in ended.errors[0]
    assert "2 of 2 steps planned ahead" in ended.errors[0]
    drawn = sorted(path.name for path in (tmp_path / "cascades" / "timeline").iterdir())
    assert drawn == [f"step-{step:06}.{kind}" for step in (2, 4) for kind in ("html", "json")]
    trace = json.loads((tmp_path / "cascades" / "timeline" / drawn[1]).read_text())
    shown = {(event["pid"], event["name"].split()[0]) for event in trace["traceEvents"] if event["ph"] == "X"}
    assert shown == {(0, "VAE"), (0, "DiT"), (1, "VAE"), (1, "DiT")}
    page = (tmp_path / "cascades" / "timeline" / drawn[0]).read_text()
    assert "executed" in page
    assert "://" not in page.replace("http://www.w3.org/2000/svg", "")
