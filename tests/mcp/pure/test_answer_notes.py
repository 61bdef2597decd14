"""Does a note come behind what a server answered, with everything else as it was?"""

import json

import pytest

from interlock.mcp.results import with_note

NOTE = "Interlock: a note"


def test_a_result_has_one_more_text_and_the_rest_as_it_was() -> None:
    content = '[{"type":"text","text":"1e400 is kept: \\ud83d\\ude00"},{"type":"image","data":"AA==","mimeType":"a/b"}]'
    message = (
        f'{{"jsonrpc":"2.0","id":"a","result":{{"x":1e400,"content":{content},"structuredContent":{{"b":1,"a":2}}}}}}'
    )
    noted = with_note(message.encode(), NOTE)
    assert noted == message.replace("]", ',{"type":"text","text":"Interlock: a note"}]', 1).encode()


def test_an_error_says_it_in_its_message() -> None:
    message = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"fetch failed","data":{"b":1}}}'
    error = json.loads(with_note(message, NOTE))["error"]
    assert error == {"code": -32000, "message": f"fetch failed ({NOTE})", "data": {"b": 1}}


@pytest.mark.parametrize(
    "message",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"contents":[]}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"content":7}}',
        b'{"jsonrpc":"2.0","id":1,"result":[]}',
        b'{"jsonrpc":"2.0","method":"notifications/message"}',
        b"no message",
    ],
)
def test_a_message_without_a_place_for_a_note_is_unchanged(message: bytes) -> None:
    assert with_note(message, NOTE) == message
