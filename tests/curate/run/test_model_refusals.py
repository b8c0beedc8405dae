"""Models that are missing, or of an unknown class, are refused before a library is loaded or anything is written."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.numpy import save_file

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.assembly import check_model_paths, model_stages
from reelweave.loader.errors import UsageError
from tests.loader.stream_clips import make_sample, write

HEAVY = ("open_clip", "ray", "torch", "transformers")
OPEN_CLIP = {"embed": {"backend": "open_clip"}}
STAGE = """
from reelweave.curate import CustomStage


class Own(CustomStage):
    scores = {"own": "a number"}

    @classmethod
    def models(cls, config):
        return ["FOLDER/none"]

    def __call__(self, clips):
        return [{"own": 1.0} for _ in clips]
"""


def described(folder: Path, text: str, *files: str) -> str:
    """A folder with a config.json, and empty files beside it."""
    folder.mkdir()
    (folder / "config.json").write_text(text)
    for name in files:
        save_file({}, folder / name) if name.endswith(".safetensors") else (folder / name).write_text("{}")
    return str(folder)


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict, str]]:
    """Configurations of one wrong model each, and a word of what is said."""
    folder = tmp_path_factory.mktemp("models")
    whole = ("model.safetensors", "tokenizer.json")
    missing, empty = str(folder / "none"), folder / "empty"
    empty.mkdir()
    unknown = described(folder / "unknown", '{"model_type": "nosuch"}', *whole)
    broken = described(folder / "broken", "{", *whole)
    theirs = described(folder / "theirs", '{"model_type": "nosuch", "auto_map": {}}', *whole)
    bare = described(folder / "bare", '{"model_type": "bert"}', "tokenizer.json")
    own = folder / "own.py"
    own.write_text(STAGE.replace("FOLDER", str(folder)))
    of_model = {
        "missing": (missing, "there is no folder"),
        "empty": (str(empty), "holds no config.json"),
        "bare": (bare, "holds no weights"),
        "unknown": (unknown, "names the model type nosuch"),
        "broken": (broken, "config.json is no JSON"),
        "theirs": (theirs, "needs Python code that its publisher put beside the weights"),
    }
    cases = {
        f"{section}.{key} {name}": ({section: {**more, key: model}}, said)
        for section, key, more in (
            ("captions", "model", {}),
            (
                "captions",
                "rewrite_model",
                {"model": described(folder / "fits", '{"model_type": "bert"}', *whole)},
            ),
            ("text_embed", "model", {}),
        )
        for name, (model, said) in of_model.items()
    }
    known = {"backend": "open_clip", "model": "ViT-B-32", "pretrained": str(own)}
    return cases | {
        "vllm": ({"captions": {"model": unknown, "backend": "vllm"}}, "names the model type nosuch"),
        "embed missing": ({"embed": {"backend": "open_clip", "model": missing}}, "there is no folder"),
        "embed empty": ({"embed": {"backend": "open_clip", "model": str(empty)}}, "no open_clip_config.json"),
        "embed unknown": ({"embed": {"backend": "open_clip", "model": "ViT-B-3"}}, "near: ViT-B-32"),
        "aesthetic": ({"embed": known, "aesthetic": {"weights": missing}}, "is no file"),
        "stages": ({"stages": {"own": {"use": f"{own}:Own"}}}, "there is no folder"),
    }


def test_models_are_refused_before_any_library_is_loaded(wrong, tmp_path: Path) -> None:
    """One process for all: the command, its forecast, and the model of a search."""
    out = tmp_path / "dataset"
    dataset = write(tmp_path / "searched", [make_sample("key", b"", 25, (64, 64))])
    models = ["ViT-B-3", str(tmp_path), str(tmp_path / "none")]
    code = f"""
import json, sys
from reelweave.curate.config import CurateConfig
from reelweave.curate.models.embed import ClipEmbedder
from reelweave.curate.run.curate import curate
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.curate.run.sample_run import forecast_curation, forecast_update
from reelweave.loader.errors import UsageError
from reelweave.pipelines.cli import main
said = {{}}
for name, values in json.load(sys.stdin).items():
    config = CurateConfig.model_validate(values)
    calls = [
        lambda: curate(["/none"], {str(out)!r}, config),
        lambda: forecast_curation(["/none"], {str(out)!r}, config, ForecastConfig()),
        lambda: forecast_update(["/none"], {str(out)!r}, config),
    ]
    if name.startswith("embed "):
        calls.append(lambda: ClipEmbedder(config.embed).check())
    said[name] = []
    for call in calls:
        try:
            call()
        except UsageError as error:
            said[name].append(str(error))
searched = [main(["search", {str(dataset)!r}, "red car", "--model", model]) for model in {models!r}]
assert searched == [2] * {len(models)}
print(json.dumps([said, [name for name in {HEAVY} if name in sys.modules]]))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps({name: values for name, (values, _) in wrong.items()}),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    for line, word in zip(
        done.stderr.splitlines(), ("near: ViT-B-32", "no open_clip_config.json", "no folder"), strict=True
    ):
        assert word in line
        assert "--model and --pretrained say where it lies" in line
    said, loaded = json.loads(done.stdout)
    assert loaded == []
    assert not out.exists()
    for name, (_, word) in wrong.items():
        assert len(said[name]) == 3 + name.startswith("embed ")
        assert len(set(said[name])) == 1, said[name]
        assert word in said[name][0], said[name]


def test_what_is_refused_at_once_is_refused_in_the_words_of_the_check_before_work(wrong) -> None:
    for name, (values, _) in wrong.items():
        if name in ("vllm", "stages", "aesthetic") or "rewrite" in name:
            continue  # these lack a package here, load in workers, or need another model that loads
        config = CurateConfig.model_validate(values)
        with pytest.raises(UsageError) as at_once:
            check_model_paths(config)
        with pytest.raises(UsageError) as before_work:
            for stage in model_stages(config):
                stage.check()
        assert str(at_once.value) == str(before_work.value)


def test_names_on_a_hub_are_not_asked_for_at_once() -> None:
    values = {
        "captions": {"model": "owner/name"},
        "text_embed": {"model": "owner/name"},
        "embed": {"backend": "open_clip", "model": "hf-hub:owner/name"},
    }
    check_model_paths(CurateConfig.model_validate(values))
