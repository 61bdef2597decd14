"""A host that a sandboxed server wanted to reach and may not: what people, clients and the record are told."""

from collections.abc import Sequence

import msgspec

from interlock.drivers.protocol.server_name import server_name


class DeniedHost(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    port: int  # 0: only its name was asked for
    why: str
    remedy: str  # what permits it

    @property
    def place(self) -> str:
        return f"{self.host}:{self.port}" if self.port else self.host

    @property
    def text(self) -> str:
        return f"egress_denied: {self.place}: {self.why}; {self.remedy}"


def remedy(segment: str, entries: Sequence[str], host: str) -> str:
    """How an operator permits the host beside `entries`. Links of drivers are called ID@MAJOR, with +TENANT."""
    segment, _, _ = segment.partition("+")
    if "@" in segment:
        return f"allow with: interlock drivers allow {server_name(segment)} {host}"
    listed = ", ".join(f'"{each}"' for each in (*entries, host))
    return f"allow with: egress = [{listed}] in [servers.{segment}] of interlock.toml"
