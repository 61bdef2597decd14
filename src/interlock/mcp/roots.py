"""Roots: folders that a client names to a server, restricted to the folders that an operator allows.

A root passes if its path leads into an allowed folder once symlinks are followed. This is checked twice: for the path
as it is written, and for the path after its dots are resolved as text, because servers differ in which of the two they
do first. A root that passes is rewritten to the resolved path, so that the server reads the path that was judged. All
others are withheld and recorded.

The number of roots in a message, the length of a URI and the depth of a path are limited: each step of each path is
looked up on the disk.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from interlock.net.protocol.uri import Unreadable, file_uri, is_within, read_file_path, without_dots
from interlock.wire.jsonrpc.codec import decode_array, decode_object, encode_value, find_string

ROOTS_MAX: Final = 32  # of one message; each is looked up on the disk, step by step
STEPS_MAX: Final = 64
URI_CHARS_MAX: Final = 1024
_SCHEME: Final = "file:"

Resolve = Callable[[str], str]  # an absolute path -> the same without symlinks


class HeldRoots(msgspec.Struct, frozen=True):
    """URIs of the roots in a client's answer, divided into those that were forwarded and those that were withheld."""

    passed: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()  # as the client wrote them, cut

    def __bool__(self) -> bool:
        return bool(self.passed or self.withheld)


NONE: Final = HeldRoots()


def encode_roots(folders: Sequence[str]) -> bytes:
    """Encode the result of `roots/list` for these folders."""
    roots = [{"uri": file_uri(folder), "name": folder.rpartition("/")[2] or folder} for folder in folders]
    return encode_value({"roots": roots})


def hold_roots_untrusted(
    answer: Raw, allowed: Sequence[str], resolve: Resolve, most: int = ROOTS_MAX
) -> tuple[Raw, HeldRoots]:
    """Remove the roots that are not allowed from a client's answer to `roots/list`. Other answers stay unchanged.

    `allowed` are paths without symlinks. Roots after the first `most` are withheld without being checked, and the
    returned record names only one of them.
    """
    members: dict[str, Any] | None = decode_object(answer)
    if members is None or "roots" not in members:
        return answer, NONE
    passed: list[dict[str, Any]] = []
    withheld: list[str] = []
    for index, raw in enumerate((decode_array(members["roots"]) or ())[: most + 1]):
        root: dict[str, Any] | None = decode_object(raw)
        uri = find_string(root.get("uri")) if root is not None else None
        path = _find_allowed_path(uri, allowed, resolve) if uri is not None and index < most else None
        if root is not None and path is not None:
            passed.append({**root, "uri": file_uri(path)})
        else:
            withheld.append((uri or "no URI")[:URI_CHARS_MAX])
    held = HeldRoots(tuple(root["uri"] for root in passed), tuple(withheld))
    return Raw(encode_value({**members, "roots": passed})), held


def hold_answers_untrusted(
    answers: Raw | Mapping[str, Raw], allowed: Sequence[str], resolve: Resolve
) -> tuple[Raw, HeldRoots]:
    """Remove the roots that are not allowed from the answers in `inputResponses` of a 2026-07-28 request."""
    if isinstance(answers, Raw):
        text = bytes(answers)
        if b"roots" not in text and b"\\u" not in text:  # nor spelled with escapes
            return answers, NONE
        # What cannot be read as an object answers nothing.
        responses: Mapping[str, Raw] = decode_object(answers) or {}
    else:
        responses = answers
    answered: dict[str, Raw] = {}
    all_held = NONE
    for key, answer in responses.items():
        seen = len(all_held.passed) + len(all_held.withheld)
        answered[key], held = hold_roots_untrusted(answer, allowed, resolve, max(0, ROOTS_MAX - seen))
        if held and seen <= ROOTS_MAX:
            all_held = HeldRoots(all_held.passed + held.passed, all_held.withheld + held.withheld)
    return Raw(encode_value(answered)), all_held


def _find_allowed_path(uri: str, allowed: Sequence[str], resolve: Resolve) -> str | None:
    if len(uri) > URI_CHARS_MAX or not allowed or uri[: len(_SCHEME)].lower() != _SCHEME:
        return None
    path = read_file_path(uri[len(_SCHEME) :])
    if isinstance(path, Unreadable) or path.count("/") > STEPS_MAX:
        return None
    real = resolve(path)
    return real if real == resolve(without_dots(path)) and is_within(real, allowed) else None
