"""What was registered last under id@major, as bytes that outlive the process, and the verdict on its successor
(AIP-identity-4). Where the bytes are kept, and when they are forgotten, is the registry's."""

import msgspec

from interlock.drivers.protocol.model import Driver
from interlock.drivers.protocol.problems import Problem
from interlock.drivers.protocol.selection.compatibility import Manifest, changes_of_identity, manifest_of

_DECODER = msgspec.json.Decoder(Manifest)


def keep(driver: Driver) -> bytes:
    return msgspec.json.encode(manifest_of(driver))


def recall(data_untrusted: bytes) -> Manifest | None:
    """None: these bytes are nothing that `keep` wrote."""
    try:
        return _DECODER.decode(data_untrusted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def successor_problems(registered: Manifest | None, changed: Driver, *, dev: bool = False) -> tuple[Problem, ...]:
    """What speaks against registering `changed` after `registered`. `dev` (drivers.dev) lets it pass, with a warning
    for each."""
    found = () if registered is None else changes_of_identity(registered, changed)
    # AIP-identity-4
    return tuple(msgspec.structs.replace(each, severity="warning") for each in found) if dev else found
