"""Which names is a model offered that asked for one that is not there?"""

import time

import pytest

from interlock.catalog.near_names import NEAR_MAX, near_names

LISTED = ["files__read_file", "files__write_file", "git__log", "git__commit", "notes__read_file", "time__convert_time"]


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("read_file", ["files__read_file", "notes__read_file"]),
        ("files.read-file", ["files__read_file"]),
        ("Git.Log", ["git__log"]),
        ("files__reed_file", ["files__read_file", "files__write_file"]),
        ("convert_time", ["time__convert_time"]),
        ("send_mail", []),
        ("", []),
        ("x" * 10_000, []),
    ],
)
def test_near_names(name: str, near: list[str]) -> None:
    assert near_names(name, LISTED) == near


def test_a_hostile_name_among_many_costs_little() -> None:
    listed = [f"server{number}__{'ab' * 50}" for number in range(20_000)]
    began = time.process_time()
    assert len(near_names("ba" * 60, listed)) <= NEAR_MAX
    assert time.process_time() - began < 2.0
