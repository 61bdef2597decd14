"""Is a large result read as a small one is?"""

import json

import pytest
from msgspec import Raw

from interlock.mcp.results import ResultFacts, find_result_facts

PLAIN = ResultFacts(may_claim=False, is_typed=False, is_error=False)


@pytest.mark.parametrize(
    ("result", "facts"),
    [
        (b'{"content":[]}', PLAIN),
        (b"{}", PLAIN),
        (b'{"content":[{"isError":true,"resultType":"x"}]}', PLAIN),
        (b'{"content":[{"_meta":{},"isError":true,"resultType":"x"}]}', ResultFacts(True, False, False)),
        (b'{"contents":[{"text":"x"},{"_meta":{}}]}', ResultFacts(True, False, False)),
        (b'{"content":[7]}', ResultFacts(True, False, False)),
        (b'{"resultType":"complete","isError":false}', ResultFacts(False, True, False)),
        (b'{"isError":true}', ResultFacts(False, False, True)),
        (b'{"_meta":{}}', ResultFacts(True, False, False)),
        (b'{"structuredContent":{}}', ResultFacts(True, False, False)),
        (b'{"result":{"_meta":{}}}', ResultFacts(True, False, False)),
    ],
)
def test_members_of_the_result_itself_count_and_metadata_of_its_blocks(result: bytes, facts: ResultFacts) -> None:
    found = find_result_facts(Raw(result))
    assert found is not None
    assert (found.may_claim, found.is_typed, found.is_error) == (facts.may_claim, facts.is_typed, facts.is_error)
    assert found.names == frozenset(json.loads(result)) and found.is_complete is found.is_typed


@pytest.mark.parametrize(
    "result",
    [
        b'{"_meta":{"x-mcpax-confirmation":1},"_meta":{}}',
        b'{"isError":true,"isError":false}',
        b'{"content": []}',
        b' {"content":[]}',
        rb'{"\u005fmeta":{}}',
        b"[]",
        b"null",
    ],
)
def test_ambiguous_results_are_left_to_a_text_search(result: bytes) -> None:
    assert find_result_facts(Raw(result)) is None
