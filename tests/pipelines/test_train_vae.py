"""A tokenizer fine-tuned on real clips, taken away, and used."""

import json
from pathlib import Path

import pytest
import torch

from reelweave.pipelines.cli import main
from reelweave.train.config.tokenizer import DiffusersVAEConfig
from reelweave.train.models.published.vae import DiffusersVAE
from tests.loader.stream_clips import make_sample, write
from tests.media import write_video
from tests.thorough import thorough
from tests.train.clips import tiny_config
from tests.train.vae.tiny import publish


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def dataset(folder: Path, name: str, scenes: range) -> str:
    clips = [
        write_video(folder / f"{scene}.mp4", (9,), size=(64, 48), first_scene=scene).read_bytes()
        for scene in scenes
    ]
    samples = [make_sample(f"{name}{n:02}", clip, 9, (64, 48)) for n, clip in enumerate(clips)]
    return str(write(folder / name, samples))


@thorough
def test_a_tokenizer_is_fine_tuned_exported_and_trained_on(tmp_path: Path, capsys) -> None:
    data = {
        name: dataset(tmp_path, name, scenes)
        for name, scenes in (("seen", range(12)), ("new", range(20, 24)))
    }
    publish(tmp_path, base_dim=8, z_dim=8, latents_mean=[0.0] * 8, latents_std=[1.0] * 8)
    factors = {"frames": 2, "height": 2, "width": 2}
    stream = {
        "buckets": {
            "frames": [1, 5], "sizes": [[16, 24]], "max_text_tokens": 9, "memory_tokens": 1300,
            "compression": factors | {"causal": True},
        },
    }  # fmt: skip
    run = {
        "dataset": data["seen"],
        "out": str(tmp_path / "run"),
        "stream": stream,
        "held_out": {"dataset": data["new"], "every_steps": 20, "steps": 2},
        "train": {
            "model": {"name": str(tmp_path), "statistics": "measure", **factors},
            "optimizer": {"lr": 5e-3, "weight_decay": 0.0},
            "schedule": {"total_steps": 40, "warmup_steps": 5},
            "log": {"tensorboard": False},
            "ema": {"decay": 0.9},
            "device": "cpu",
        },
    }
    (tmp_path / "vae.json").write_text(json.dumps(run))
    assert main(["train-vae", "--config", str(tmp_path / "vae.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 40
    looks = [
        json.loads(line) for line in (tmp_path / "run" / "reconstruction.jsonl").read_text().splitlines()
    ]
    assert [look["step"] for look in looks] == [0, 20, 40]
    for part in ("mean", "first", "rest"):
        assert looks[2]["psnr"][part] > looks[0]["psnr"][part] + 2, part
    assert looks[2]["psnr"]["mean"] > looks[0]["psnr"]["mean"] + 3
    assert looks[2]["ssim"]["mean"] > looks[0]["ssim"]["mean"]
    assert (tmp_path / "run" / "reconstructions" / "step-000040.png").stat().st_size > 100

    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "tuned"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"] == "ema"
    import diffusers  # takes seconds of every process that collects this file

    theirs = diffusers.AutoencoderKLWan.from_pretrained(tmp_path / "tuned")
    ours = DiffusersVAE(DiffusersVAEConfig(name=str(tmp_path / "tuned"), **factors))
    video = torch.rand(2, 3, 5, 16, 24, generator=torch.Generator().manual_seed(0)) * 2 - 1
    mean, deviation = (
        torch.tensor(theirs.config[name]).view(1, 8, 1, 1, 1) for name in ("latents_mean", "latents_std")
    )
    with torch.no_grad():
        raw = theirs.encode(video).latent_dist.mode()
    torch.testing.assert_close(ours.encode(video), (raw - mean) / deviation)
    assert not torch.allclose(deviation, torch.ones(()))

    dit = tiny_config(2).model_dump(mode="json")
    dit["tokenizer"] = {"kind": "diffusers", "name": str(tmp_path / "tuned"), **factors}
    stream["buckets"] |= {"compression": {"frames": 2, "height": 4, "width": 4, "causal": True}}
    used = {"dataset": data["seen"], "out": str(tmp_path / "dit"), "stream": stream, "train": dit}
    (tmp_path / "dit.json").write_text(json.dumps(used))
    assert main(["train", "--config", str(tmp_path / "dit.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 2

    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "tuned")]) == 2
    assert main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "other"), "--merge"]) == 2
