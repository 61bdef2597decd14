"""Does each parser of other people's text take time linear in it? Hostile texts of n and 4n characters, timed.

A quadratic parser needs sixteen times as long for the larger text; what is allowed is half of that. The texts are large
enough for the difference to drown what else the machine does, and the best of several rounds counts.
"""

import time
from collections.abc import Callable

import pytest

from interlock.credentials.protocol.resource import read_challenge_untrusted
from interlock.gate.protocol.reserved_claims import without_claims
from interlock.interop.protocol.model import Style
from interlock.interop.protocol.text_edits import blank_comments
from interlock.interop.protocol.translation import split_parts
from interlock.mcp.items import STEPS_MAX, TEMPLATE_CHARS_MAX, URI_CHARS_MAX, Matcher
from interlock.net.protocol.egress import Malformed, read_head_untrusted

GROWTH_MAX = 8.0
ROUNDS = 5

Parser = Callable[[str], object]


def read_proxy_head(text: str) -> object:
    return read_head_untrusted(b"GET http://a/ HTTP/1.1\r\n" + text.encode() + b"\r\n\r\n")


def read_challenge(text: str) -> object:
    return read_challenge_untrusted([text.encode()])


def drop_claims(text: str) -> object:
    return without_claims(text.encode())


def split(style: Style) -> Parser:
    return lambda text: split_parts(text, style)


HOSTILE: list[tuple[str, Parser, str, str, str]] = [
    ("a header of spaces and a NUL", read_proxy_head, "a:", " ", "\0"),
    ("a header name without an end", read_proxy_head, "", "a", "!"),
    ("a string of escaped quotes that nothing ends", blank_comments, '"', '\\"', ""),
    ("commas without a bracket", blank_comments, "", ", ", "x"),
    ("comments that nothing ends", blank_comments, "", "/* ", ""),
    ("a double placeholder of spaces", split("continue"), "${{", " ", "}"),
    ("double placeholders that nothing ends", split("continue"), "", "${{ ", ""),
    ("a template of spaces", split("docker"), "{{", " ", "}"),
    ("templates that nothing ends", split("docker"), "", "{{ ", ""),
    ("a challenge parameter that nothing ends", read_challenge, 'Bearer a="', '\\"', ""),
    ("a challenge of one word", read_challenge, "", "a", "\0"),
    ("reserved keys of a result", drop_claims, '{"_meta":{', '"x-mcpax-a":1,', '"b":1}}'),
    ("blocks of a result with reserved keys", drop_claims, '{"content":[', '{"_meta":{"x-mcpax-a":1}},', "{}]}"),
    ("beginnings of what a result may not say", drop_claims, '{"a":"', r"\u00call_digesx-mcpax_", '"}'),
    ("a challenge of commas", read_challenge, "Bearer ", "a=b, ", ""),
]


def seconds(parser: Parser, text: str) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        started = time.process_time()
        parser(text)
        best = min(best, time.process_time() - started)
    return best


@pytest.mark.parametrize(
    ("parser", "before", "repeated", "after"), [row[1:] for row in HOSTILE], ids=[r[0] for r in HOSTILE]
)
def test_four_times_the_text_takes_no_more_than_a_few_times_as_long(
    parser: Parser, before: str, repeated: str, after: str
) -> None:
    count = 8_000 // len(repeated)
    short = seconds(parser, before + repeated * count + after)
    long = seconds(parser, before + repeated * (4 * count) + after)
    assert long <= max(short * GROWTH_MAX, 0.005)


def test_a_header_that_is_no_header_is_refused_by_name() -> None:
    refused = read_proxy_head("a:" + " " * 30_000 + "\0")
    assert refused == Malformed("a header that is none")


def test_the_work_for_one_uri_is_bounded_over_all_templates() -> None:
    literal = "a" * (TEMPLATE_CHARS_MAX - len("{x}{y}"))
    matcher = Matcher("a" * (URI_CHARS_MAX - 1) + "b")
    hostile = "{x}" + literal + "{y}"
    tried = 3 * STEPS_MAX // len(literal)
    assert [matcher.matches(hostile) for _ in range(tried)].count(True) == STEPS_MAX // len(hostile)
