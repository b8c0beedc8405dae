"""Processes write the same bytes of the same weights, whatever the order of their sets and hashes."""

import os
import subprocess
import sys
from pathlib import Path

import torch

from reelweave.train.config.lora import LORA_FILE
from reelweave.train.models.bundle import Bundle
from reelweave.train.sampling.trained.export import export
from reelweave.train.sampling.trained.load import Trained, load_published
from tests.thorough import thorough
from tests.train.models import wan_pipelines
from tests.train.models.published.formats import tools

FORMS = (("native", True), ("native", False), ("kohya", False))


def export_all(folder: str, experts: str) -> None:
    """Export a drawn model, its adapters in each form, and those of one of two experts in a folder."""
    out = Path(folder)
    for form, whole in FORMS:
        model = tools.drawn_model(out / "model", "wan", None if whole else {})
        tools.exported(model, out / f"{form}-{whole}.safetensors", form)
    config = wan_pipelines.configured(Path(experts), "2.2 A14B T2V", lora={"rank": 4, "alpha": 6.0})
    bundle = Bundle(config).eval()
    torch.manual_seed(2)
    for weight in bundle.trained_weights().values():
        torch.nn.init.normal_(weight.data, std=0.1)
    export(Trained("drawn", config, bundle, 1, "model"), out / "first")
    plain = wan_pipelines.configured(Path(experts), "2.2 A14B T2V")
    export(load_published(plain, torch.device("cpu"), out / "first"), out / "again")


def exported(folder: Path) -> dict[str, bytes]:
    files = [folder / f"{form}-{whole}.safetensors" for form, whole in FORMS]
    files += [folder / name / LORA_FILE for name in ("first", "again")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


@thorough
def test_a_process_of_other_hashes_exports_the_same_bytes(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    experts = str(wan_pipelines.publish(tmp_path / "experts", "2.2 A14B T2V"))
    export_all(str(here), experts)
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    module = "tests.train.models.published.formats.test_same_bytes"
    code = f"from {module} import export_all; export_all{(str(there), experts)}"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | {"PYTHONHASHSEED": seed})
    made = exported(here)
    assert exported(there) == made
    assert made[f"again/{LORA_FILE}"] == made[f"first/{LORA_FILE}"]
