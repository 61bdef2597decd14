"""Is a difference between what an example wants and what a driver gives said where it is?"""

from typing import Any

import pytest

from interlock.drivers.registry.contract_tests import differences


@pytest.mark.req("AIP-14.rules-3")
@pytest.mark.parametrize(
    ("wanted", "got", "said"),
    [
        ({"a": 1}, {"a": 1.0}, []),
        ([1, "x", None], [1, "x", None], []),
        ({"a": 1}, {"a": True}, ["/a: wanted 1, got true"]),
        (True, 1, ["/: wanted true, got 1"]),
        ({"a": 1}, {"a": 2}, ["/a: wanted 1, got 2"]),
        ({"a": 1}, {}, ["/a: wanted 1, it is missing"]),
        ({}, {"a/b": 1}, ["/a~1b: 1 was not wanted"]),
        ({"a": [1, 2]}, {"a": [1]}, ["/a: wanted 2 entries, got 1"]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, ["/a/0/b: wanted 1, got 2"]),
        ([], {}, ["/: wanted [], got {}"]),
        (None, "", ['/: wanted null, got ""']),
    ],
)
def test_values_differ_where_they_do(wanted: Any, got: Any, said: list[str]) -> None:
    assert list(differences(wanted, got)) == said


def test_a_long_value_is_cut() -> None:
    (told,) = differences("", "x" * 10_000)
    assert len(told) < 300
