import json
import random
from typing import Any

import pytest

from interlock.wire.jsonrpc.codec import ID_BYTES_MAX
from interlock.wire.jsonrpc.oversized import MessageKind, Oversized, OversizedScanner

LIMIT = 10

MESSAGES = [
    (rb'{"jsonrpc":"2.0","id":5,"result":{"a":1}}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"content":[{"text":"x"}]},"jsonrpc":"2.0","id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"id":7,"x":[{"id":8}]},"id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"text":"}},\"id\":9}"},"id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"text":"\\"},"id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"text":"\\\\\\\""},"id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":{"\"id\":3,":"{[{["},"\u0069d":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"re\u0073ult":[],"\u0069\u0064" : 5 }', MessageKind.RESPONSE, b"5"),
    (rb'{"method":"notes","result":1,"id":"a\"b"}', MessageKind.REQUEST, rb'"a\"b"'),
    (b' {\t"error" :{} ,\r "id": -12 }', MessageKind.RESPONSE, b"-12"),
    (rb'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":5}}', MessageKind.NOTIFICATION, b""),
    (rb'{"id":5,"method":"sampling/createMessage","params":{"x":', MessageKind.REQUEST, b"5"),
    (rb'{"id":5,"result":{"x":"', MessageKind.RESPONSE, b"5"),
    (rb'{"result":"id","id":5}', MessageKind.RESPONSE, b"5"),
    (rb'{"result":[],"ID":5}', MessageKind.UNKNOWN, b""),
    (rb'{"result":{},"id":null}', MessageKind.UNKNOWN, b""),
    (rb'{"result":{},"id":[5]}', MessageKind.UNKNOWN, b""),
    (rb'{"result":{},"id":1.5}', MessageKind.UNKNOWN, b""),
    (rb'{"id":5}', MessageKind.UNKNOWN, b"5"),
    (b'{"result":{},"id":' + b"9" * (ID_BYTES_MAX + 1) + b"}", MessageKind.UNKNOWN, b""),
    (b'{"' + b"k" * 5000 + b'":1,"result":{},"id":5}', MessageKind.RESPONSE, b"5"),
    (b'[{"result":{},"id":5}]', MessageKind.UNKNOWN, b""),
    (b"", MessageKind.UNKNOWN, b""),
    (b"x" * 100, MessageKind.UNKNOWN, b""),
]


def scan(text: bytes, sizes: list[int]) -> Oversized:
    scanner = OversizedScanner(LIMIT)
    at = 0
    for size in sizes:
        scanner.feed(text[at : at + size])
        at += size
    scanner.feed(text[at:])
    return scanner.found


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10_000])
@pytest.mark.parametrize(("text", "kind", "id"), MESSAGES)
def test_whose_it_is_is_found_however_the_message_is_cut(text: bytes, kind: MessageKind, id: bytes, size: int) -> None:
    assert scan(text, [size] * (len(text) // size)) == Oversized(LIMIT, kind, id)


def test_an_oversized_message_is_settled_as_soon_as_nothing_that_follows_can_change_it() -> None:
    scanner = OversizedScanner(LIMIT)
    scanner.feed(b'{"id":5,"jsonrpc":"2.0",')
    assert not scanner.is_settled
    scanner.feed(b'"result":')
    assert scanner.is_settled


def test_any_json_gives_the_members_of_its_outermost_object() -> None:
    rng = random.Random(7)
    letters = ["id", "result", '"', "\\", "{", "}", "[", "]", ",", ":", "日本", "\n", "\x00", "5", "\ud800"]

    def value(depth: int) -> Any:
        match rng.randrange(8 if depth else 5):
            case 0:
                return rng.randrange(-1000, 1000)
            case 1:
                return "".join(rng.choices(letters, k=rng.randrange(60)))
            case 2:
                return rng.choice([None, True, 1.5e300, ""])
            case 3 | 4:
                return "".join(rng.choices(letters, k=rng.randrange(3)))
            case 5:
                return [value(depth - 1) for _ in range(rng.randrange(6))]
            case _:
                return {rng.choice(letters) + str(n): value(depth - 1) for n in range(rng.randrange(6))}

    for _ in range(500):
        members = [("result", value(5)), ("jsonrpc", "2.0"), ("x", value(4)), ("id", rng.randrange(10_000))]
        rng.shuffle(members)
        message = dict(members)
        text = json.dumps(message, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        data = text.encode(errors="surrogatepass")
        sizes = [rng.randrange(1, 40) for _ in range(rng.choice([0, 3, len(data) // 20]))]
        assert scan(data, sizes) == Oversized(LIMIT, MessageKind.RESPONSE, b"%d" % message["id"]), data


def test_no_nonsense_is_an_exception() -> None:
    rng = random.Random(8)
    pieces = [
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'"id"',
        b"5",
        b'"result"',
        b" ",
        b"\xff",
        b'{"result":{',
    ]
    for _ in range(2000):
        text = b'{"result":{' * rng.randrange(2) + b"".join(rng.choices(pieces, k=rng.randrange(400)))
        scan(text, [rng.randrange(1, 300) for _ in range(rng.randrange(4))])


@pytest.mark.parametrize("unit", [b"[", b"[]", b'{"a":[{', b'\\"', b"\\\\", b'"a":1,', b'"a":[],', b'"\\u0069d":{},'])
def test_hostile_text_costs_linear_time(unit: bytes) -> None:
    looked_at = 0

    class Counting(OversizedScanner):
        __slots__ = ()

        def _pass_piece(self, piece: bytes) -> bool:
            nonlocal looked_at
            looked_at += len(piece)
            return super()._pass_piece(piece)

    nested = b'{"result":{' + unit * (500_000 // len(unit))
    top = b'{"a":0,' + unit * (100_000 // len(unit))
    for text in (nested, top):
        scanner = Counting(LIMIT)
        for at in range(0, len(text), 65536):
            scanner.feed(text[at : at + 65536])
    assert looked_at <= 8 * (len(nested) + len(top))
