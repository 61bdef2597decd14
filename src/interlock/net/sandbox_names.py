"""The name server of one sandboxed server: it answers for the hosts that may be reached, and for no other.

In: DNS queries from inside. Out: an address of the loopback network that stands for the host, so that a program which
knows no proxy connects to the egress proxy all the same; "no such name" for everything else, which `denied` hears. No
query leaves the machine.
"""

import asyncio
import ipaddress
from collections.abc import Callable
from typing import Final

from interlock.net.protocol.dns_query import answer_query, read_query_untrusted

FIRST_ADDRESS: Final = ipaddress.IPv4Address("127.64.0.1")  # every address of 127.0.0.0/8 leads back to its sandbox
NAMES_MAX: Final = 16_384  # of one start; a server that may reach any host may think up any number


class SandboxNames(asyncio.DatagramProtocol):
    def __init__(self, may_reach: Callable[[str], bool], denied: Callable[[str], None]) -> None:
        self._may_reach = may_reach
        self._denied = denied
        self._addresses: dict[str, str] = {}
        self._hosts: dict[str, str] = {}
        self._transport: asyncio.DatagramTransport | None = None

    def host_at(self, address: str) -> str | None:
        """Return the host that an address was assigned to, or None."""
        return self._hosts.get(address)

    def connection_made(self, transport: asyncio.DatagramTransport) -> None:  # type: ignore[override]
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        query = read_query_untrusted(data)
        if query is None or self._transport is None:
            return
        address = self._maybe_address(query.name)
        if address is None and query.wants_address:
            self._denied(query.name)
        self._transport.sendto(answer_query(query, address), addr)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _maybe_address(self, host: str) -> str | None:
        assigned = self._addresses.get(host)
        if assigned is not None or len(self._addresses) >= NAMES_MAX or not self._may_reach(host):
            return assigned
        address = str(FIRST_ADDRESS + len(self._addresses))
        self._addresses[host], self._hosts[address] = address, host
        return address
