"""CBOR messages of devices (AX-8.2-8): one item each."""

from typing import Any, Final

from interlock.devices.protocol.messages import DeviceFault
from interlock.wire.cbor import CborError, read_item_untrusted

INTEGER_MAX: Final = 2**64 - 1
INTEGER_MIN: Final = -(2**64)


def encoded(value: Any) -> bytes:
    """Return the deterministic encoding (RFC 8949, 4.2): shortest forms, sorted keys."""
    import cbor2  # an extra, which devices of Profile A do without

    return cbor2.dumps(value, canonical=True)


def read_untrusted(data: bytes) -> Any:
    """Return the one CBOR item that `data` holds. Raises DeviceFault (malformed)."""
    try:
        value, rest = read_item_untrusted(data)
    except CborError as error:
        raise DeviceFault("malformed", str(error)) from None
    if rest:
        raise DeviceFault("malformed", f"{len(rest)} bytes after the CBOR item")
    return value
