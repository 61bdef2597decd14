"""`expiry.detect` of a driver's auth: by what an expired login is known (AIP-30.auth-2)."""

from collections.abc import Sequence

import msgspec

from interlock.drivers.protocol.model import Driver

_STATUS, _EXIT, _EXCEPTION, _HEADER = "http_status", "exit_code", "exception", "header"


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """How one exchange with the server failed. `exception`: the code of our own error."""

    status: int = 0
    exit_code: int | None = None
    exception: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()


class Detector(msgspec.Struct, frozen=True, kw_only=True):
    written: str
    kind: str
    wanted: str

    def is_expired(self, seen: Detected) -> bool:
        match self.kind:
            case "http_status":
                return str(seen.status) == self.wanted  # AIP-30.auth-2
            case "exit_code":
                return str(seen.exit_code) == self.wanted
            case "exception":
                return seen.exception == self.wanted
            case _:
                name, _, value = self.wanted.partition(":")
                return any(
                    key.decode("latin-1").lower() == name.strip().lower() and said.decode("latin-1") == value.strip()
                    for key, said in seen.headers
                )


def maybe_detector(driver: Driver) -> Detector | None:
    """None where nothing is written, or nothing that is understood."""
    expiry = driver.auth.expiry if driver.auth is not None else None
    return None if expiry is None else _read(expiry.detect)


def _read(written: str) -> Detector | None:
    kind, _, wanted = written.partition(":")
    if kind in (_STATUS, _EXIT):
        known = wanted.removeprefix("-").isdecimal() and wanted.isascii()
    elif kind == _HEADER:
        known = all(part.strip() for part in wanted.split(":", 1)) and ":" in wanted
    else:
        known = kind == _EXCEPTION and bool(wanted)
    return Detector(written=written, kind=kind, wanted=wanted) if known else None
