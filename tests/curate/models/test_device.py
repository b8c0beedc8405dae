"""What a source's own process takes of the machine."""

import numpy as np
from threadpoolctl import threadpool_info

from reelweave.curate.models.device import one_thread


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_matrix_products_of_a_source_stay_on_one_thread_and_others_are_left_as_they_were() -> None:
    assert np.__version__  # its BLAS is loaded
    before = blas_threads()
    with one_thread():
        assert blas_threads() == {1}
    assert blas_threads() == before
