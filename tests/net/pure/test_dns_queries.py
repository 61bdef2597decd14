"""Is a DNS question read, and answered, as RFC 1035 says, and everything else left alone?"""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interlock.net.protocol.dns import ADDRESS, ADDRESS_6, answer_query, read_query_untrusted


def asked(name: bytes, kind: int = ADDRESS, *, flags: int = 0x0100, questions: int = 1, class_: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label for label in name.split(b".") if label)
    return struct.pack(">6H", 7, flags, questions, 0, 0, 0) + labels + b"\0" + struct.pack(">2H", kind, class_)


@pytest.mark.parametrize(
    ("name", "read"),
    [(b"api.Example.COM", "api.example.com"), (b"a", "a"), (b"_sip.x-1.org.", "_sip.x-1.org"), (b"a" * 63, "a" * 63)],
)
def test_a_question_about_a_host_is_read(name: bytes, read: str) -> None:
    query = read_query_untrusted(asked(name) + b"an EDNS record, say")
    assert query is not None
    assert (query.name, query.wants_address) == (read, True)
    assert query.question == asked(name)[12:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        asked(b"a.b")[:-1],
        asked(b"a.b")[:14],
        asked(b""),
        asked(b"a.b", flags=0x8100),
        asked(b"a.b", flags=0x2800),
        asked(b"a.b", questions=2),
        asked(b"a.b", class_=3),
        asked(b"a b.c"),
        asked(b"-a.c"),
        asked("ä.c".encode()),
        asked(b"a.b")[:12] + b"\xc0\x0c\x00\x01\x00\x01",
        asked(b".".join([b"a" * 60] * 9)),
    ],
)
def test_other_messages_are_no_question(data: bytes) -> None:
    assert read_query_untrusted(data) is None


@given(st.binary(max_size=600))
def test_any_bytes_are_a_question_or_none(data: bytes) -> None:
    query = read_query_untrusted(data)
    if query is not None:
        assert answer_query(query, None)[:2] == data[:2]


def test_a_known_name_has_one_address_and_no_other_record() -> None:
    query = read_query_untrusted(asked(b"api.foo.com"))
    assert query is not None
    answer = answer_query(query, "127.64.0.9")
    number, flags, questions, answers, *_ = struct.unpack_from(">6H", answer)
    assert (number, flags & 0x8000, flags & 0xF, questions, answers) == (7, 0x8000, 0, 1, 1)
    assert answer[12:].startswith(query.question)
    assert answer[-4:] == bytes([127, 64, 0, 9])
    six = read_query_untrusted(asked(b"api.foo.com", ADDRESS_6))
    assert six is not None
    assert struct.unpack_from(">6H", answer_query(six, "127.64.0.9"))[1:4] == (0x8180, 1, 0)


def test_an_unknown_name_is_answered_so() -> None:
    query = read_query_untrusted(asked(b"api.bar.com"))
    assert query is not None
    assert struct.unpack_from(">6H", answer_query(query, None))[1:4] == (0x8183, 1, 0)
