"""What a server's refusal says: WWW-Authenticate in every spelling that is allowed, and in many that are not."""

import pytest

from interlock.credentials.protocol.resource import (
    NO_CHALLENGE,
    SCOPES_MAX,
    Challenge,
    distinct_scopes,
    read_challenge_untrusted,
)

URL = "https://h/.well-known/oauth-protected-resource/mcp"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([f'Bearer resource_metadata="{URL}"'], Challenge(resource_metadata=URL)),
        ([f'bearer realm="a, b", resource_metadata="{URL}"'], Challenge(resource_metadata=URL)),
        ([f'BEARER  scope="a b" ,resource_metadata = "{URL}"'], Challenge(resource_metadata=URL, scope=("a", "b"))),
        (['Bearer error="insufficient_scope", scope="x:y"'], Challenge(error="insufficient_scope", scope=("x:y",))),
        (["Bearer error=invalid_token"], Challenge(error="invalid_token")),
        (['Basic realm="x", Bearer error="e"'], Challenge(error="e")),
        (['Basic realm="Bearer error=no"', 'Bearer error="e"'], Challenge(error="e")),
        (["Negotiate abc/d+e==, Bearer error=e"], Challenge(error="e")),
        (['Bearer error="e", DPoP algs="ES256", error="f"'], Challenge(error="e")),
        (['Bearer error="a\\"b\\\\c"'], Challenge(error='a"b\\c')),
        (['Bearer error="first", error="second"'], Challenge(error="first")),
        (["Bearer"], NO_CHALLENGE),
        (["Bearer,"], NO_CHALLENGE),
        ([", , Bearer ,, scope=a"], Challenge(scope=("a",))),
        (['Bearer scope=""'], NO_CHALLENGE),
        ([], NO_CHALLENGE),
        ([""], NO_CHALLENGE),
        (["Basic x"], NO_CHALLENGE),
    ],
)
def test_a_challenge_is_read(values: list[str], expected: Challenge) -> None:
    assert read_challenge_untrusted([value.encode("latin-1") for value in values]) == expected


@pytest.mark.parametrize(
    "value",
    [
        b'Bearer scope="never closed',
        b'Bearer resource_metadata="https://h/\\',
        b"Bearer =",
        b'Bearer "" = ""',
        b"\xff\xfe\x00",
        b"Bearer " + b'x="' * 5000,
        b"Bearer " + b",=" * 5000,
        b"B" * 100_000,
        b"\\" * 9000,
    ],
)
def test_a_malformed_challenge_counts_as_no_challenge(value: bytes) -> None:
    assert read_challenge_untrusted([value]) == NO_CHALLENGE


def test_scopes_are_kept_in_order_once_and_not_without_end() -> None:
    assert distinct_scopes(["b", "a", "", "b", '"c"', "\x7f", "é", "d\\"]) == ("b", "a")
    assert len(distinct_scopes(f"s{number}" for number in range(1000))) == SCOPES_MAX
