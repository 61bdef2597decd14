"""The state of a server's question, marked with the driver that asked: the retry goes to no other (AIP-proto-7).

The mark is no secret and gives no right: who serves the retry is resolved as for every call, and it can only be the
driver named here or to none.
"""

from typing import Any, Final

from msgspec import Raw

from interlock.wire.jsonrpc.codec import decode_object, encode_value, find_string

PREFIX: Final = "ild1."
_END: Final = " "  # in no driver's key


def seal(result: Raw, driver: str) -> Raw:
    """An input_required whose state, if only for us, says who asked."""
    members: dict[str, Any] = decode_object(result) or {}
    state = find_string(members.get("requestState"))
    members["requestState"] = f"{PREFIX}{driver}{_END}{'' if state is None else '=' + state}"
    return Raw(encode_value(members))


def pin(driver: str) -> str:
    """A state without a question before it: the call goes to this driver or to none."""
    return f"{PREFIX}{driver}{_END}"


def open_untrusted(raw: Raw) -> tuple[str, Raw | None] | None:
    """The driver that asked, and its state; None: this is no state of ours."""
    said = find_string(raw)
    if said is None or not said.startswith(PREFIX):
        return None
    driver, end, state = said.removeprefix(PREFIX).partition(_END)
    if not driver or not end or (state and not state.startswith("=")):
        return None
    return driver, Raw(encode_value(state[1:])) if state else None
