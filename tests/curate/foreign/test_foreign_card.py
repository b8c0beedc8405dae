"""The card by which Hugging Face's `datasets` opens an indexed folder by its name."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.curate.foreign.foreign_sets import clips, index
from tests.foreign_tars import by_tarfile
from tests.thorough import thorough

READ = """
import json, sys
import datasets
[read] = datasets.load_dataset(sys.argv[1], streaming=True).items()
print(json.dumps([read[0], [one["__key__"] for one in read[1].cast_column("mp4", datasets.Video(decode=False))]]))
"""


def tars(tmp_path: Path) -> Path:
    raw, folder = tmp_path / "raw", tmp_path / "set"
    (folder / "part [1]").mkdir(parents=True)
    for number, name in enumerate(("a.tar", "part [1]/b.tar", "part [1]/c.tar")):
        by_tarfile(folder / name, clips(raw, 10 * number, 2))
    return folder


@thorough
def test_an_indexed_folder_opens_in_datasets_by_its_name(tmp_path: Path) -> None:
    folder = tars(tmp_path)
    index(folder)
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home"), "PATH": os.environ["PATH"]}
    ran = subprocess.run(
        [sys.executable, "-c", READ, str(folder)], env=offline, capture_output=True, text=True, check=True
    )
    split, keys = json.loads(ran.stdout.splitlines()[-1])
    assert (split, len(keys)) == ("train", 6)


def test_the_card_names_the_tars_and_one_of_other_origin_is_left_alone_and_said(tmp_path: Path) -> None:
    folder = tars(tmp_path)
    assert index(folder).notes == ()
    text = (folder / "README.md").read_text()
    assert '- "*.tar"\n    - "part [[]1]/*.tar"' in text
    assert index(folder, shards="part*.tar").notes == ()
    assert '- "part [[]1]/b.tar"\n    - "part [[]1]/c.tar"' in (folder / "README.md").read_text()
    (folder / "README.md").write_text("# My films\n")
    [note] = index(folder).notes
    assert "README.md is not ours and was left alone" in note
    assert (folder / "README.md").read_text() == "# My films\n"
    index(folder, out=str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere" / "README.md").exists()
