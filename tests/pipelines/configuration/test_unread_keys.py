"""Keys that another choice leaves unread are said: they were taken without a word, and had no effect."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from reelweave.curate.config import CurateConfig
from reelweave.loader.settings import unread_keys
from reelweave.pipelines.configuration.config import resolve
from reelweave.pipelines.configuration.keys import models_of
from reelweave.pipelines.configuration.train_config import TrainRunConfig
from reelweave.pipelines.configuration.train_vae_config import VaeRunConfig
from reelweave.train.latents.config import LatentsConfig
from tests.commands import reelweave

_NEEDS_A_MODEL = "it is for embed.backend other than none and perceptual, and embed.backend is perceptual"
CASES = {
    "embed.model=nothing": "it is for backend open_clip, and backend is perceptual",
    "captions.fps=1.0": "it is for model, which is not set",
    "captions.endpoint_timeout_s=9.0": "it is for backend endpoint, and backend is transformers",
    "captions.rewrite_prompt=shorter": "it is for rewrite_model, which is not set",
    "aesthetic.reduce=min": "it is for weights, which is not set",
    "text_embed.max_tokens=9": "it is for model, which is not set",
    "dedup.semantic.min_similarity=0.5": "it is for enabled True, and enabled is False",
    "dedup.semantic.enabled=True": _NEEDS_A_MODEL,
    "dedup.balance.max_clips=9": _NEEDS_A_MODEL,
    "dedup.balance.concepts=9": "it is for max_clips, which is not set",
    "cut.max_copied_mbps=9.0": "it is for mode smart, and mode is encode",
    "shots.fixed.stride_s=3.0": "it is for detector fixed, and detector is colour",
    "shots.hybrid.nominations.cut_threshold=0.3": "it is for detector hybrid, and detector is colour",
    "stitch.min_similarity=0.5": "it is for enabled True, and enabled is False",
    "run.embed_gpus=1.0": "it is for embed.backend open_clip, and embed.backend is perceptual",
    "run.caption_while_cutting=True": "it is for captions.model, which is not set",
}
OTHERS = {
    ("dedup.perceptual.enabled=false", "dedup.perceptual.min_overlap=0.5"): "it is for enabled True",
    ("cut.mode=copy", "cut.crf=9"): "it is for mode other than copy",
    ("cut.audio=drop", "cut.audio_bitrate_kbps=64"): "it is for audio keep",
    ("captions.model=here", "captions.checks=false", "captions.min_words=9"): "it is for checks True",
    ("run.runner=sequential", "run.wait_for_cpus=9"): "it is for runner ray",
    ("run.isolate=false", "run.attempts=9"): "it is for isolate True",
    ("shots.detector=fixed", "stitch.enabled=true"): "it is for shots.detector other than fixed",
    (
        "embed.backend=none",
        "dedup.semantic.enabled=true",
    ): "it is for embed.backend other than none and perceptual",
}


@pytest.mark.parametrize("given", CASES)
def test_a_key_that_is_not_read_is_said(given: str) -> None:
    assert list(unread_keys(resolve(CurateConfig, None, [given]))) == [f"{given} is not read: {CASES[given]}"]


@pytest.mark.parametrize("given", OTHERS)
def test_a_key_that_another_one_switches_off_is_said(given: tuple[str, ...]) -> None:
    [line] = unread_keys(resolve(CurateConfig, None, given))
    key = given[-1].partition("=")[0]
    assert line.startswith(f"{key}=")
    assert OTHERS[given] in line


def test_keys_that_are_read_and_defaults_are_not_said() -> None:
    chosen = [
        "embed.backend=open_clip",
        "embed.model=here",
        "shots.detector=hybrid",
        "shots.colour.cut_threshold=0.5",
        "stitch.enabled=true",
        "stitch.min_similarity=0.5",
        "cut.crf=9",
        "run.attempts=4",
        "captions.max_chars=9",
    ]
    for given in ([], ["cut.mode=copy", "run.runner=sequential", "shots.detector=fixed"], chosen):
        assert list(unread_keys(resolve(CurateConfig, None, given))) == []


def test_prices_without_the_one_that_they_are_compared_with_are_said() -> None:
    assert list(unread_keys(LatentsConfig(months=9), "latents")) == [
        "latents.months=9.0 is not read: it is for device_hour_price, which is not set"
    ]


@pytest.mark.parametrize("root", [CurateConfig, TrainRunConfig, VaeRunConfig])
def test_what_the_rules_name_exists(root: type[BaseModel]) -> None:
    for model in {root, *sections(root)}:
        for key, (choice, _) in getattr(model, "READ_WITH", {}).items():
            for path in (key, choice):
                assert has_key(model, path.split(".")), f"{model.__name__}: {path}"


def test_curate_says_them_before_it_begins(tmp_path: Path) -> None:
    done = reelweave("curate", tmp_path / "none", "--out", tmp_path / "ds", "--set", "embed.model=nothing")
    assert f"note: embed.model=nothing is not read: {CASES['embed.model=nothing']}\n" in done.stderr


def sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in model.model_fields.values():
        for inner in models_of(field.annotation):
            yield inner
            yield from sections(inner)


def has_key(model: type[BaseModel], path: list[str]) -> bool:
    name, *rest = path
    if name not in model.model_fields:
        return False
    return not rest or any(has_key(inner, rest) for inner in models_of(model.model_fields[name].annotation))
