"""Configurations: layered, strict, and wrong ones explained to a person."""

from pathlib import Path

import pytest

from reelweave.curate.config import CurateConfig
from reelweave.curate.run.outlook.forecast import ForecastConfig
from reelweave.loader.base.yaml_text import MAX_BYTES
from reelweave.loader.buckets.cost import Cost
from reelweave.loader.errors import UsageError
from reelweave.loader.settings import Settings
from reelweave.pipelines.configuration.config import resolve
from reelweave.train.config.run import TrainConfig


def put(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "my.yaml"
    path.write_text(text)
    return path


def test_overrides_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = put(tmp_path, "cut:\n  crf: 30\n  preset: fast\n")
    config = resolve(CurateConfig, file, ["cut.crf=25", "run.runner=sequential"])
    assert (config.cut.crf, config.cut.preset, config.cut.threads) == (25, "fast", CurateConfig().cut.threads)
    assert config.run.runner == "sequential"


def test_a_preset_is_not_lost_where_an_option_sets_a_key_of_its_section(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"model is 'tiny-st-dit', .*give all its keys together, as model=\{"
    ):
        resolve(TrainConfig, put(tmp_path, "model: tiny-st-dit\n"), ["model.layers=3"])
    with pytest.raises(UsageError, match="start_from is 'runs/a', which stands for the whole section"):
        resolve(TrainConfig, None, ["start_from=runs/a", "start_from.optimizer=kept"])
    config = resolve(
        TrainConfig, None, ["ema=null", "ema.decay=0.5", "start_from={source: a, weights: model}"]
    )
    assert config.ema
    assert config.start_from
    assert (config.ema.decay, config.start_from.weights) == (0.5, "model")


def test_an_empty_file_means_the_defaults(tmp_path: Path) -> None:
    assert resolve(CurateConfig, put(tmp_path, ""), []) == CurateConfig()


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        ("cut:\n  crff: 30\n", [], ["cut.crff", "my.yaml", "did you mean cut.crf?", "preset"]),
        ("cutt: {}\n", [], ["cutt", "my.yaml", "did you mean cut?"]),
        ("cut:\n  crf: high\n", [], ["cut.crf", "my.yaml", "'high'", "integer"]),
        ("cut:\n  crf: yes\n", [], ["cut.crf", "my.yaml, line 2", "True", "a boolean", "write a number"]),
        ("", ["cut.crf=true"], ["cut.crf", "--set", "a boolean"]),
        ("", ["filters.min_of_a_stage=on"], ["filters.min_of_a_stage", "--set", "a boolean"]),
        ("", ["storage.max_attempts=true"], ["storage.max_attempts", "--set", "a boolean"]),
        ("cut:\n  crff: true\n", [], ["cut.crff", "did you mean cut.crf?"]),
        ("cut:\n  crf: 99\n", [], ["cut.crf", "my.yaml", "99", "51"]),
        ("", ["run.runner=spark"], ["run.runner", "--set", "'spark'", "'ray' or 'sequential'"]),
        ("", ["cut.crff=3"], ["cut.crff", "--set", "did you mean cut.crf?"]),
        ("cut: 3\n", [], ["cut", "my.yaml"]),
        ("", ["cut.crf"], ["cut.crf", "key=value"]),
        ("", ["cut.crf=[1"], ["cut.crf"]),
        ("", ["cut.crf="], ["--set cut.crf has no value; write null for none"]),
        ("", ["cut.crf= "], ["--set cut.crf has no value"]),
        ("cut: fast\n", ["cut.crf=3"], ["--set cut.crf: cut is 'fast', which stands for the whole section"]),
        ("", ["cut=fast", "cut.crf=3"], ["--set cut.crf: cut is 'fast', which stands for the whole section"]),
        ("a: [", [], ["my.yaml", "YAML"]),
        ("- 1\n", [], ["my.yaml", "mapping"]),
        ("a: !!python/object/apply:os.system [id]\n", [], ["my.yaml"]),
    ],
)
def test_wrong_configurations_name_the_key_the_place_and_what_is_allowed(
    tmp_path: Path, text: str, overrides: list[str], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CurateConfig, put(tmp_path, text), overrides)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        (
            "model.hiden=3",
            r"train\.model\.hiden \(--set\) is no known key; did you mean train\.model\.hidden\?",
        ),
        ("model.hidden=x", r"train\.model\.hidden \(--set\) cannot be 'x'"),
        ("model.heads=5", r"train\.model \(.*my\.yaml, line 1\): hidden"),
        ("ema={dcay: 0.9}", r"train\.ema\.dcay \(--set\) is no known key; did you mean train\.ema\.decay\?"),
        (
            "objective.shift={kind: root, facto: 2}",
            r"train\.objective\.shift\.facto \(--set\) .* base_tokens, kind",
        ),
        ("log.peak_tflops=x", r"train\.log\.peak_tflops \(--set\) cannot be 'x'.*'measure'"),
        ("grad_clip=2", r"train\.grad_clip .*; did you mean train\.optimizer\.grad_clip\?"),
        ("steps=3", r"train\.steps .*; did you mean train\.schedule\.total_steps\?"),
        ("lr=3", r"train\.lr .*; did you mean train\.optimizer\.lr\?"),
        ("warmup=3", r"train\.warmup .*; did you mean train\.schedule\.warmup_steps\?"),
        ("optimizer.betas=[1, 2]", r"train\.optimizer\.betas\.0 \(--set\) cannot be 1"),
    ],
)
def test_keys_of_sections_with_several_kinds_are_named_as_they_are_written(
    tmp_path: Path, override: str, sentence: str
) -> None:
    class Command(Settings):
        train: TrainConfig

    file = put(tmp_path, "train: {model: {kind: dit}}\n")
    with pytest.raises(UsageError, match=sentence) as caught:
        resolve(Command, file, [f"train.{override}"])
    assert "known here: ;" not in str(caught.value)


def test_keys_known_in_a_section_are_listed_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CurateConfig, put(tmp_path, "cut: {crf: x, a: 1, b: 2}\n"), [])
    assert str(caught.value).count("known here: ") == 1


def test_of_a_union_only_the_given_kind_is_spoken_of(tmp_path: Path) -> None:
    class Command(Settings):
        cost: Cost

    with pytest.raises(UsageError) as caught:
        resolve(Command, put(tmp_path, "cost: {kind: power, fixed_s: -1}\n"), [])
    assert "cost.fixed_s" in str(caught.value)
    assert "token_s" not in str(caught.value)
    assert "linear" not in str(caught.value)


def test_the_option_of_a_wrong_value_is_named() -> None:
    for wrong in ("nothing=1", "core_hour_price=dear"):
        with pytest.raises(UsageError, match=r"\(--rates\)"):
            resolve(ForecastConfig, None, [wrong], "--rates")
    with pytest.raises(UsageError, match=r"^--rates dear: write it as key=value$"):
        resolve(ForecastConfig, None, ["dear"], "--rates")


def test_every_wrong_key_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(CurateConfig, put(tmp_path, "cut: {crf: x}\nfilters: {min: 1}\n"), [])
    assert "cut.crf" in str(caught.value)
    assert "filters.min" in str(caught.value)


def test_a_file_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.yaml"):
        resolve(CurateConfig, tmp_path / "gone.yaml", [])


def test_a_configuration_may_be_an_address(tmp_path: Path) -> None:
    file = put(tmp_path, "cut: {crf: 30}\n")
    assert resolve(CurateConfig, file.as_uri(), ["cut.preset=fast"]).cut == CurateConfig().cut.model_copy(
        update={"crf": 30, "preset": "fast"}
    )
    file.write_text("cut: {crff: 30}\n")
    with pytest.raises(UsageError, match=rf"cut.crff \({file.as_uri()}, line 1\).* did you mean cut.crf"):
        resolve(CurateConfig, file.as_uri(), [])


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("file:///nowhere/my.yaml", "file:///nowhere/my.yaml does not exist; give a YAML file"),
        ("ftp://host/my.yaml", "cannot open ftp://host"),
        ("s3://bucket", "names no object; give the full path of a file"),
        ("s3://bucket/my.yaml", "storage.endpoint_url .* cannot be 'nowhere': write it as http"),
    ],
)
def test_an_address_without_a_configuration_is_explained(uri: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        resolve(
            CurateConfig, uri, ["storage.endpoint_url=nowhere"] if "my.yaml" in uri and uri[0] == "s" else []
        )


def test_a_configuration_behind_an_address_has_a_bounded_size(tmp_path: Path) -> None:
    file = put(tmp_path, "#" * (MAX_BYTES + 1))
    with pytest.raises(UsageError, match=r"my.yaml is larger than 256 KiB; give a smaller file"):
        resolve(CurateConfig, file.as_uri(), [])


class Stage(Settings):
    source: str
    weights: str = "model"


class Run(Settings):
    steps: int = 1
    stage: Stage | None = None


def test_a_missing_key_is_where_its_section_was_given(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    for text, origin in (("steps: 2\n", "--set"), ("steps: 2\nstage: {weights: ema}\n", f"{file}, line 2")):
        file.write_text(text)
        with pytest.raises(UsageError) as refused:
            resolve(Run, file, ["stage.weights=average"])
        assert f"stage.source ({origin})" in str(refused.value)
