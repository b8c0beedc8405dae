"""The tests of our S3 client on a server that others wrote than moto's authors; how it differs is named here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from reelweave.loader.errors import RunError
from reelweave.loader.storage import StorageConfig, hold_lease, open_storage
from tests.second_s3 import PROGRAM, make_bucket, server
from tests.thorough import nightly

FOLDER = Path(__file__).parent
NO_CONDITIONS = "nanio 0.1.7 ignores If-None-Match and If-Match of a PUT, and tells nobody"
SHORT_RANGES = "it refuses a range that reaches behind the end (RFC 9110 gives what there is)"
FILES = "its objects are files: one name cannot be both an object and a prefix"
SIGNED = "it checks signatures, so that a proxy cannot change requests"
DIFFERS = {
    "test_a_server_that_ignores_conditions_of_reads_mixes_no_versions": SIGNED,
    "test_a_server_that_ignores_prefixes_costs_others_nothing": SIGNED,
    "test_a_compare_and_swap_wants_the_version_it_read": NO_CONDITIONS,
    "test_of_many_that_swap_one_version_one_wins": NO_CONDITIONS,
    "test_create_writes_only_the_first_time": NO_CONDITIONS,
    "test_awkward_names_are_ordinary": NO_CONDITIONS,
    "test_a_create_whose_answer_is_lost_knows_its_own_object": NO_CONDITIONS,
    "test_a_swap_whose_answer_is_lost_knows_its_own_object": NO_CONDITIONS,
    "test_a_large_file_is_created_once": NO_CONDITIONS,
    "test_a_create_that_lost_against_another_writer_knows_it": NO_CONDITIONS,
    "test_a_range_ends_where_the_object_ends": SHORT_RANGES,
    "test_an_empty_object_reads_as_empty": SHORT_RANGES,
    "test_a_range_of_which_less_is_given_is_asked_for_again_from_there": SHORT_RANGES,
    "test_a_folder_is_no_object": FILES,
    "test_deleting_twice_is_no_error": FILES,
    "test_folder_markers_are_no_objects_and_go_with_the_tree": FILES,
}
pytestmark = pytest.mark.skipif(
    not PROGRAM.exists(), reason="no second S3 server beside this Python: pip install nanio"
)


@nightly  # a minute, and the same promises on moto
def test_our_client_works_with_a_second_server_but_for_what_it_does_not_know() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.second_s3", "-p", "no:cacheprovider"]
    files = [str(FOLDER / name) for name in ("test_storage.py", "test_storage_s3.py")]
    ended = subprocess.run(
        [*command, "-k", "not local", *files],
        cwd=FOLDER.parents[2],
        env=os.environ | {"PYTHONPATH": str(FOLDER.parents[2])},
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    failed = set(re.findall(r"^FAILED \S+::(\w+)", ended.stdout, re.M))
    assert failed <= set(DIFFERS), ended.stdout[-4000:]
    passed = re.search(r"(\d+) passed", ended.stdout)
    assert passed
    assert int(passed[1]) >= 70


def test_a_server_without_conditions_is_refused_before_anything_is_written() -> None:
    with server() as endpoint:
        make_bucket(endpoint, "bucket")
        storage = open_storage("s3://bucket/set", StorageConfig(endpoint_url=endpoint))
        with (
            pytest.raises(RunError, match=r"s3://bucket/set/\.reelweave-lease"),
            hold_lease(storage, "a test"),
        ):
            pytest.fail("two writers would not see each other")
        assert [found.path for found in storage.list()] in ([], [".reelweave-lease"])
