"""The bench of attention, as a toy on the processor."""

import json

from tests.bench import attention


def test_every_way_to_attend_agrees_with_float32_and_has_its_times(tmp_path, capsys):
    attention.main(["--tiny", "--out", str(tmp_path / "attention.md")])
    rows = json.loads((tmp_path / "attention.json").read_text())
    assert {row["by"] for row in rows} >= {
        "PyTorch's choice",
        "PyTorch's choice, mask",
        "flash, sample by sample",
    }
    assert all(row["output_error"] < 1e-5 and row["gradient_error"] < 1e-5 for row in rows)
    assert all(row["forward_ms"] > 0 and row["both_ms"] > 0 for row in rows)
    table = (tmp_path / "attention.md").read_text()
    assert table.count("\n| ") == len(rows) + 1
    assert capsys.readouterr().out == table


def test_what_cannot_run_and_what_there_is_no_time_for_have_a_reason():
    toy, device = attention.TINY[0], attention.torch.device("cpu")
    given, gradient = attention.inputs(toy, device)

    def broken(*_):
        raise RuntimeError("no such kernel\nfurther lines")

    row = attention.measured(toy, "broken", broken, given, gradient, [])
    assert attention.line(row) == "| self | broken | no such kernel | | | | | |"
    assert [row.reason for row in attention.measure([toy], device, until=0)] == ["no time was left"]
