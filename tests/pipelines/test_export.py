import json
import os
import stat
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from reelweave.loader.errors import UsageError
from reelweave.loader.storage import StorageConfig, open_storage
from reelweave.pipelines.cli import main
from reelweave.train.checkpoint.saver import Checkpoints
from reelweave.train.checkpoint.state import CheckpointState
from reelweave.train.config.checkpoint import CheckpointConfig
from reelweave.train.config.lora import LORA_FILE, LoraConfig
from reelweave.train.config.optimizer import EmaConfig
from reelweave.train.distributed.world import World
from reelweave.train.loop.trainer import Trainer
from reelweave.train.models.published.weights import PublishedModel
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import load_trained
from reelweave.train.sampling.trained.native import export_native
from tests.s3server import make_bucket, s3_server
from tests.train.checkpoint import sharded
from tests.train.clips import ClipStream, tiny_config
from tests.train.published import run_config
from tests.train.ranks import Ranks
from tests.train.saved import tensors

MODEL = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor(2.5).bfloat16(), "n": torch.tensor([7])}
EMA = {name: tensor + 1 for name, tensor in MODEL.items()}


def save(place: str, groups: dict, step: int = 3, config: StorageConfig = StorageConfig()) -> None:  # noqa: B008
    world = World(0, 1, torch.device("cpu"))
    state = CheckpointState(step=step, stream={}, config={"seed": 1})
    Checkpoints(open_storage(place, config), CheckpointConfig(), world, groups).save(state, last=True)


@pytest.mark.parametrize("named", ["", "step-000003"])
def test_the_average_is_exported_where_there_is_one(tmp_path: Path, capsys, named: str) -> None:
    save(str(tmp_path / "checkpoints"), {"model": MODEL, "ema": EMA})
    out = tmp_path / "new folder" / "weights.safetensors"
    assert main(["export", str(tmp_path / "checkpoints" / named), "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "out": str(out), "step": 3, "weights": "ema", "tensors": 3, "parameters": 8, "bytes": out.stat().st_size,
    }  # fmt: skip
    found = load_file(out)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in EMA.items()
    }
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "step": "3", "weights": "ema", "config": '{"seed": 1}'}


def test_plain_weights_are_rounded_on_request(tmp_path: Path) -> None:
    save(str(tmp_path), {"model": MODEL, "ema": EMA})
    out = tmp_path / "weights.safetensors"
    assert (
        main(["export", str(tmp_path), "--out", str(out), "--weights", "model", "--dtype", "bfloat16"]) == 0
    )
    found = load_file(out)
    assert {name: tensor.dtype for name, tensor in found.items()} == {
        "a": torch.bfloat16, "b": torch.bfloat16, "n": torch.int64,
    }  # fmt: skip
    assert torch.equal(found["a"].float(), MODEL["a"])


def test_values_that_a_dtype_cannot_hold_are_refused_and_nothing_is_written(tmp_path: Path, capsys) -> None:
    large = {"a": torch.tensor([1.0, 1e5]), "b": torch.tensor([float("inf"), 1.0])}
    save(str(tmp_path / "run"), {"model": large})
    out = tmp_path / "weights.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(out), "--dtype", "float16"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "a has values up to 1e+05, and float16 ends at 65,504: take --dtype bfloat16 or float32" in said
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert main(["export", str(tmp_path / "run"), "--out", str(out), "--dtype", "bfloat16"]) == 0
    # What was infinite stays so: it does not come from rounding.
    save(str(tmp_path / "other"), {"model": {"b": large["b"]}})
    assert main(["export", str(tmp_path / "other"), "--out", str(out), "--dtype", "float16"]) == 0


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["whole", "adapters"])
@pytest.mark.parametrize("form", ["diffusers", "native"])
def test_no_format_makes_values_infinite(tmp_path: Path, lora: dict | None, form: str) -> None:
    Trainer(run_config(tmp_path, "wan", 1, lora=lora), ClipStream(), tmp_path / "run").run()
    trained = load_trained(str(tmp_path / "run"), torch.device("cpu"))
    for name, weight in trained.bundle.dit.named_parameters():
        if "attn1.to_q" in name and (lora is None or ".lora_" in name):
            weight.data.fill_(1e6)
    out = tmp_path / ("out" if form == "diffusers" else "out.safetensors")
    with pytest.raises(
        UsageError, match=r"(attn1.to_q|self_attn.q).* has values up to 1e\+06, and float16 ends"
    ):
        if form == "diffusers":
            export(trained, out, dtype="float16")
        else:
            export_native(trained, form, open_storage(str(tmp_path)), out.name, False, "float16")
    assert not out.exists()


def test_a_replaced_file_is_said_and_a_pipe_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(str(tmp_path), {"model": MODEL})
    (tmp_path / "target.safetensors").write_text("mine")
    (tmp_path / "link.safetensors").symlink_to("target.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")
    monkeypatch.chdir(tmp_path)
    assert main(["export", ".", "--out", "link.safetensors"]) == 0
    assert "link.safetensors exists and is replaced" in capsys.readouterr().err
    assert (tmp_path / "link.safetensors").is_symlink()
    assert load_file(tmp_path / "target.safetensors").keys() == MODEL.keys()
    for named in ("pipe.safetensors", f"file://{tmp_path}/pipe.safetensors"):
        assert main(["export", ".", "--out", named]) == 2
        assert "is no file" in capsys.readouterr().err
    assert (tmp_path / "pipe.safetensors").is_fifo()


def test_it_reads_and_writes_s3(tmp_path: Path) -> None:
    with s3_server() as endpoint:
        make_bucket(endpoint, "runs")
        save("s3://runs/a/checkpoints", {"model": MODEL}, config=StorageConfig(endpoint_url=endpoint))
        arguments = ["s3://runs/a/checkpoints/step-000003", "--out", "s3://runs/a/w.safetensors"]
        assert main(["export", *arguments, "--endpoint-url", endpoint]) == 0
        stored = open_storage("s3://runs/a", StorageConfig(endpoint_url=endpoint)).read("w.safetensors")
    (tmp_path / "w").write_bytes(stored)
    assert torch.equal(load_file(tmp_path / "w")["a"], MODEL["a"])


def test_what_was_sharded_is_whole(tmp_path: Path, ranks: Ranks) -> None:
    ended = ranks.run(sharded.save, 3, str(tmp_path), [3])
    assert ended.codes == [0] * 3, ended.errors
    out = tmp_path / "w.safetensors"
    assert main(["export", str(tmp_path / "checkpoints"), "--out", str(out), "--weights", "model"]) == 0
    found = load_file(out)
    assert found.keys() == sharded.values()["model"].keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in sharded.values()["model"].items())


def test_what_is_no_checkpoint_is_refused_and_nothing_is_written(tmp_path: Path, capsys) -> None:
    out = tmp_path / "w.safetensors"
    assert main(["export", str(tmp_path), "--out", str(out)]) == 2
    assert "holds no checkpoint" in capsys.readouterr().err
    save(str(tmp_path), {"model": MODEL})
    assert main(["export", str(tmp_path), "--out", str(out), "--weights", "ema"]) == 2
    (tmp_path / "step-000003" / "model" / "00000-of-00001.safetensors").write_bytes(b"cut off")
    assert main(["export", str(tmp_path), "--out", str(out)]) == 1
    assert not out.exists()


def test_an_export_of_adapters_says_where_their_scale_is(tmp_path: Path, capsys) -> None:
    Trainer(tiny_config(2), ClipStream(), tmp_path / "base").run()
    lora = LoraConfig(rank=2, alpha=8.0, checkpoint=str(tmp_path / "base"))
    Trainer(tiny_config(2).model_copy(update={"lora": lora}), ClipStream(), tmp_path / "run").run()
    capsys.readouterr()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert "lora.alpha 8 / lora.rank 2 is multiplied into the matrices" in capsys.readouterr().err
    file = tmp_path / "w.safetensors"
    assert main(["export", str(tmp_path / "run"), "--out", str(file), "--json"]) == 0
    said = capsys.readouterr()
    assert "by our names and without the scale alpha / rank" in said.err
    assert "adapters" not in json.loads(said.out)
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "merged"), "--merge"]) == 0
    assert "lora.alpha" not in capsys.readouterr().err


def test_a_published_run_is_exported_by_the_names_of_other_tools(tmp_path: Path, capsys) -> None:
    config = run_config(tmp_path, "wan", 2, lora={"rank": 2, "alpha": 8.0})
    Trainer(config, ClipStream(), tmp_path / "run").run()
    run, native, kohya = str(tmp_path / "run"), tmp_path / "n.safetensors", tmp_path / "k.safetensors"
    capsys.readouterr()
    assert main(["export", run, "--out", str(native), "--format", "native", "--json"]) == 0
    said = capsys.readouterr()
    assert "lora.alpha 8 / lora.rank 2 is multiplied into the matrices" in said.err
    assert json.loads(said.out) | {"parameters": 0} == {
        "out": str(native), "step": 2, "weights": "model", "format": "native", "merged": False, "tensors": 48,
        "parameters": 0,
    }  # fmt: skip
    assert load_file(native)["diffusion_model.blocks.0.self_attn.q.alpha"].item() == 2
    assert main(["export", run, "--out", str(kohya), "--format", "kohya", "--dtype", "bfloat16"]) == 0
    assert load_file(kohya)["lora_unet_blocks_1_cross_attn_o.lora_up.weight"].dtype == torch.bfloat16
    whole = tmp_path / "w.safetensors"
    assert main(["export", run, "--out", str(whole), "--format", "native", "--merge"]) == 0
    assert "head.head.weight" in load_file(whole)
    with safe_open(native, framework="pt") as file:
        assert set(file.metadata()) == {"format", "reelweave_base", "reelweave_rank"}


def test_adapters_are_exported_without_the_weights_under_them(tmp_path: Path, capsys, monkeypatch) -> None:
    """Whose 14B parameters a host that only writes 100 MB need not hold."""
    Trainer(run_config(tmp_path, "wan", 2, lora={"rank": 2}), ClipStream(), tmp_path / "run").run()
    run, whole, alone = str(tmp_path / "run"), tmp_path / "whole", tmp_path / "alone"
    trained = load_trained(run, torch.device("cpu"))
    export(trained, whole)

    def load_(*_: object) -> None:
        raise AssertionError("the weights under the adapters are read")

    monkeypatch.setattr(PublishedModel, "load_", load_)
    assert main(["export", run, "--out", str(alone)]) == 0
    assert (alone / LORA_FILE).read_bytes() == (whole / LORA_FILE).read_bytes()
    for form in ("native", "kohya"):
        file = str(tmp_path / f"{form}.safetensors")
        assert main(["export", run, "--out", file, "--format", form]) == 0
    capsys.readouterr()
    assert main(["export", run, "--out", file, "--format", "kohya", "--merge"]) == 2
    assert "has names for adapters alone" in " ".join(capsys.readouterr().err.split())


def test_a_folder_is_rounded_on_request(tmp_path: Path) -> None:
    Trainer(tiny_config(2), ClipStream(), tmp_path / "run").run()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    weights, saved = load_file(tmp_path / "out" / "model.safetensors"), tensors(tmp_path / "run", "model")
    for name, weight in weights.items():
        assert torch.equal(weight, saved[f"dit.{name}"].bfloat16())


@pytest.mark.parametrize("group", ["ema", "model"])
def test_a_model_of_ours_becomes_a_folder(tmp_path: Path, capsys, group: str) -> None:
    config = tiny_config(2).model_copy(update={"ema": EmaConfig(decay=0.5)})
    Trainer(config, ClipStream(), tmp_path / "run").run()
    command = ["export", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--weights", group, "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"out": str(tmp_path / "out"), "step": 2, "weights": group, "merged": False}
    weights, saved = load_file(tmp_path / "out" / "model.safetensors"), tensors(tmp_path / "run", group)
    expected = {name.removeprefix("dit."): weight for name, weight in saved.items()}
    assert all((weight == expected[name]).all() for name, weight in weights.items())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["kind"] == "dit"
    (tmp_path / "file").touch()
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (*(tmp_path / "out").iterdir(), tmp_path / "file")}
    assert len(modes) == 1  # that of the umask
    (tmp_path / "file").unlink()
    assert main(command) == 2
    assert "exists" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]
    (tmp_path / "file").touch()
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "file" / "out")]) == 2
    assert "file/out cannot be written: Not a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--out", "w.safetensors", "--merge"), "--merge"),
        (("--out", "s3://bucket/folder"), "no local folder"),
        (("--out", "w.safetensors", "--format", "diffusers"), "--format diffusers writes a folder"),
        (("--out", "folder", "--format", "kohya"), "--format kohya writes one file"),
    ],
)
def test_what_only_the_other_kind_can_be_is_refused(tmp_path: Path, capsys, more, told: str) -> None:
    save(str(tmp_path), {"model": MODEL})
    assert main(["export", str(tmp_path), *more]) == 2
    assert told in capsys.readouterr().err
