"""Pages and a YAML file of every configuration key, generated from the models' own fields.

python -m reelweave.pipelines.configuration.config_docs page > docs/curate-config.md
python -m reelweave.pipelines.configuration.config_docs yaml > pipelines/configs/curate.yaml
python -m reelweave.pipelines.configuration.config_docs train > docs/train-config.md
python -m reelweave.pipelines.configuration.config_docs vae > docs/vae-config.md
python -m reelweave.pipelines.configuration.config_docs latents > docs/latents-config.md
"""

import sys
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from reelweave.loader.settings import summary
from reelweave.pipelines.configuration.commented import commented_yaml
from reelweave.pipelines.configuration.keys import Key, choices_of, inside, keys_of, models_of, tag_of

CURATE_HEAD = """# Every key of `reelweave curate`

Set a key in a YAML file (`--config FILE`) or on the command line (`--set section.key=value`). This page is made by
`python -m reelweave.pipelines.configuration.config_docs page`.
Where the defaults come from: [curate-defaults.md](curate-defaults.md).
"""

TRAIN_HEAD = """# Every key of the section `train` of `reelweave train`

Set a key in the YAML file (`--config FILE`) or on the command line (`--set train.section.key=value`). This page is made
by `python -m reelweave.pipelines.configuration.config_docs train`. What the objectives compute: [train.md](train.md).
"""

VAE_HEAD = """# Every key of the section `train` of `reelweave train-vae`

Set a key in the YAML file (`--config FILE`) or on the command line (`--set train.section.key=value`). This page is made
by `python -m reelweave.pipelines.configuration.config_docs vae`. How to use them: [finetune-vae.md](finetune-vae.md).
"""

LATENTS_HEAD = """# Every key of the section `latents` of `reelweave train`, which `reelweave latents` reads

Set a key in the YAML file (`--config FILE`) or on the command line (`--set latents.key=value`). This page is made by
`python -m reelweave.pipelines.configuration.config_docs latents`. What the command does: [latents.md](latents.md).
"""


def page(model: type[BaseModel], head: str) -> str:
    """Return the page of a whole configuration in Markdown: a table per section, or per alternative of one."""
    parts = [head]
    for name, field in model.model_fields.items():
        sections = models_of(field.annotation)
        for section in sections:
            title = f"{name}, {tag_of(section)}" if len(sections) > 1 else name
            unset = f" Unset by default: {field.description}." if field.default is None else ""
            keys = keys_of(section, inside(name, field))
            rows = [_row(key) for key in keys if not key.section or key.field.default is None]
            parts += [f"\n## {title}\n\n{summary(section)}{unset}\n", _table(rows), ""]
    if single := [_row(key) for key in keys_of(model) if "." not in key.path and not key.section]:
        parts += ["\n## Keys without a section\n", _table(single), ""]
    return "\n".join(parts)


def yaml_file(config: BaseModel) -> str:
    """Return a curation's configuration as YAML with the descriptions for comments."""
    head = [
        "Every key of `reelweave curate` with its default.",
        "Copy what you change; --set section.key=value wins.",
    ]
    return commented_yaml(config, head)


def _table(rows: Iterable[str]) -> str:
    return "\n".join(["| key | default | what it does |", "|---|---|---|", *rows])


def _row(key: Key) -> str:
    choices, only = choices_of(key.field), f"{key.only}: " if key.only else ""
    listed = "One of " + ", ".join(f"`{choice}`" for choice in choices) if choices else ""
    described = key.field.description or " ".join(map(summary, models_of(key.field.annotation)))
    what = ". ".join(text for text in (only + described, listed) if text)
    return f"| `{key.path}` | {_default(key.field)} | {_cell(what)} |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "needed"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "unset"
    if isinstance(value, tuple | list):
        return f"`[{', '.join(str(element) for element in value)}]`"
    return (
        f"`{_cell(str(value).lower() if isinstance(value, bool) else str(value))}`"
        if value != ""
        else "empty"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    from reelweave.curate.config import CurateConfig
    from reelweave.train.config.run import TrainConfig
    from reelweave.train.config.vae import VaeTrainConfig
    from reelweave.train.latents.config import LatentsConfig

    made = {
        "page": lambda: page(CurateConfig, CURATE_HEAD),
        "yaml": lambda: yaml_file(CurateConfig()),
        "train": lambda: page(TrainConfig, TRAIN_HEAD),
        "vae": lambda: page(VaeTrainConfig, VAE_HEAD),
        "latents": lambda: page(LatentsConfig, LATENTS_HEAD),
    }
    print(made[sys.argv[1]](), end="")
