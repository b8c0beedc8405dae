import numpy as np
import pytest

from reelweave.loader.errors import UsageError
from reelweave.train.cascade.costs.profile_csv import MeasuredCascade, profile_csv
from reelweave.train.cascade.planners.plan import plan
from reelweave.train.cascade.problem import Module
from reelweave.train.cascade.simulation.cost_table import read_cost_table
from reelweave.train.cascade.simulation.trace import TraceBatch
from tests.train.cascade.check import violations

SMALL = """module,batch,frames,degree,seconds,kind
vae,1,13,1,4,measured
vae,1,13,2,2.5,measured
dit,1,13,2,8,measured
dit,1,13,4,4.5,measured
vae,2,5,1,3,guessed
dit,2,5,1,6,guessed
dit,2,5,2,3.5,guessed
"""


def test_a_table_gives_the_times_that_it_holds():
    table = read_cost_table(SMALL, "costs.csv")
    problem = table.problem([TraceBatch(frames=5, batch=2), TraceBatch(frames=13)], gpus=4)
    assert problem.degrees_K.tolist() == [1, 2, 4]
    inf = np.inf
    assert problem.times_SMK[:, Module.VAE].tolist() == [[3, inf, inf], [4, 2.5, inf]]
    assert problem.times_SMK[:, Module.DIT].tolist() == [[6, 3.5, inf], [inf, 8, 4.5]]
    assert not problem.has_SM[:, Module.TEXT].any()  # without rows it is cached
    found = plan(problem).best
    assert violations(problem, found) == []
    assert found.makespan_s == pytest.approx(2.5 + 4.5 + 3.5)  # with it the DiT of 13 frames leaves no GPU


def test_degrees_and_memory_narrow_a_table():
    text = "module,frames,degree,seconds,memory_gib\ndit,13,1,8,90\ndit,13,2,5,45\ndit,13,4,3,\n"
    table = read_cost_table(text, "costs.csv")
    step = [TraceBatch(frames=13)]
    assert np.isfinite(table.problem(step, 4, memory_gib=80).times_SMK[0, Module.DIT]).tolist() == [
        False,
        True,
        True,
    ]
    assert table.problem(step, 4, degrees=(1, 4)).degrees_K.tolist() == [1, 4]
    assert table.problem(step, 2).possible_SMK[0, Module.DIT].tolist() == [True, True, False]
    with pytest.raises(
        UsageError, match=r"DIT of sample 0 .* with 1 it needs 1\.12 times the memory of a GPU"
    ):
        table.problem(step, 1, memory_gib=80)


def test_columns_and_rows_in_json_are_the_same_table():
    rows = [line.split(",") for line in SMALL.splitlines()]
    text = f'{{"model": "small", "columns": {rows[0]}, "rows": {rows[1:]}}}'.replace("'", '"')
    one, other = read_cost_table(SMALL, "a"), read_cost_table(text, "b")
    assert one.by_shape == other.by_shape
    assert one.columns == other.columns == ("batch", "frames")


def test_a_profile_is_a_table_and_tokens_alone_are_cached_latents():
    shape = {"batch": 1, "frames": 5, "height": 64, "width": 96, "length": 48}
    rows = [
        MeasuredCascade(module=module, degree=degree, seconds=seconds, peak_gib=None, **shape)
        for module, degree, seconds in (("text", 1, 0.1), ("vae", 1, 1.0), ("dit", 1, 4.0), ("dit", 2, 2.5))
    ]
    table = read_cost_table(profile_csv(rows), "cascades.csv")
    step = [TraceBatch(frames=5, height=64, width=96), TraceBatch(tokens=48)]
    problem = table.problem(step, gpus=2)
    assert problem.has_SM.tolist() == [[True, True, True], [True, False, True]]
    assert problem.times_SMK[1, Module.DIT].tolist() == [4.0, 2.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("module,frames,seconds\ndit,5,1\n", "costs is no cost table: it has no column degree"),
        ("module,degree,seconds\ndit,1,1\n", "neither a column frames nor a column length"),
        (
            "module,frames,degree,seconds\nunet,5,1,1\n",
            "costs, line 2: module is 'unet'; it is one of text, vae",
        ),
        (
            "module,frames,degree,seconds\ndit,5,1,nan\n",
            "costs, line 2: seconds is 'nan', which is no positive number",
        ),
        ("module,frames,degree,seconds\ndit,5,1\n", "costs, line 2: seconds is None"),
        (
            "module,frames,degree,seconds\ndit,5,1.5,2\n",
            "costs, line 2: degree is '1.5', which is no positive whole number",
        ),
        (SMALL + "dit,2,5,1,9,x\n", "line 9: the dit of batch 2, frames 5 with degree 1 is there twice"),
        ("module,frames,degree,seconds\nvae,5,1,1\n", "no rows of the module dit"),
        ('{"columns": ["module"]}', "JSON must be"),
        ('{"columns": ["module", "degree"], "rows": [["dit"]]}', "row 0 is no list of 2 values"),
        ("{", "neither CSV nor JSON"),
    ],
)
def test_what_is_wrong_in_a_table_is_named(text, told):
    with pytest.raises(UsageError, match=told):
        read_cost_table(text, "costs")


@pytest.mark.parametrize(
    ("sample", "degrees", "told"),
    [
        (
            TraceBatch(frames=9),
            None,
            "sample 0: costs has no row of the VAE of batch 1, frames 9; the nearest are",
        ),
        (TraceBatch(tokens=50), None, "sample 0 has tokens alone, and costs no column length"),
        (
            TraceBatch(frames=13),
            (1, 16),
            "has the DIT of batch 1, frames 13 with degree 2, 4 alone, and asked for is 1, 16",
        ),
    ],
)
def test_a_sample_without_a_row_is_named_with_what_is_near(sample, degrees, told):
    with pytest.raises(UsageError, match=told):
        read_cost_table(SMALL, "costs").problem([sample], 4, degrees)
