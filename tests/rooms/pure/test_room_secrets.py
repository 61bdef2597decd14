"""Does a proposal hold what looks like a secret, and where? In bounded time, whatever is sent."""

import json
import time

import pytest

from interlock.rooms.protocol.proposals import FOUND_MAX, secret_places, secret_refusal

PATTERNS = ("ACME-*",)


@pytest.mark.req("X-7.2-1")
@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        ({"bed": "north", "litres": 5, "on": True, "note": None}, []),
        ({"text": "my key is ACME-4711, keep it"}, ["/text"]),
        ({"text": "ACME is a company; acme-4711 is none of its keys"}, []),
        ({"a": [{"x/y~": "token=ACME-1"}]}, ["/a/0/x~1y~0"]),
        ({"password": "correct horse"}, ["/password"]),
        ({"max_tokens": "500"}, []),
        ({"url": "https://user:pass@example.com/"}, ["/url"]),
        ([], []),
    ],
)
def test_secrets_are_reported_with_their_place(arguments: object, places: list[str]) -> None:
    assert secret_places(json.dumps(arguments).encode(), PATTERNS) == places


@pytest.mark.req("X-7.2-1")
def test_the_secret_itself_is_not_repeated_and_the_list_is_short() -> None:
    refusal = secret_refusal(json.dumps(["ACME-4711"] * 100).encode(), PATTERNS)
    assert refusal is not None and refusal.code == "secret_found"
    assert len(refusal.details["at"]) == FOUND_MAX and "4711" not in str(refusal)


@pytest.mark.parametrize(
    "hostile",
    [
        json.dumps(["ACME" * 5] * 100_000).encode(),
        json.dumps([[0] * 500] * 1000).encode(),
        json.dumps({"x": "password" * 100_000}).encode(),
        json.dumps("-" * 1_000_000).encode(),
        b"[" * 100_000,
        b"[" * 500 + b"]" * 500,
        b"\xff{",
    ],
    ids=["many", "numbers", "long", "dashes", "deep", "nested", "no text"],
)
def test_hostile_arguments_take_no_longer_than_a_moment(hostile: bytes) -> None:
    began = time.process_time()
    secret_places(hostile, ("*" * 20, "a*a*a*a*b"))
    assert time.process_time() - began < 0.5
