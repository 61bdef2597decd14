"""A DNS server in a thread, over UDP and TCP, that answers as a test tells it to."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import dns.dnssec
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rdatatype
import dns.rrset
from cryptography.hazmat.primitives.asymmetric import ed25519

Answerer = Callable[[dns.message.Message, bool], "dns.message.Message | bytes | None"]  # the query, and whether by TCP


class NameServer:
    """`address` is what a resolver is configured as; `answers` may be replaced at any time."""

    def __init__(self) -> None:
        self.answers: Answerer = lambda query, is_tcp: None
        self.udp, self.tcp = _one_port_for_both()
        self.tcp.listen(8)
        self.address = f"127.0.0.1:{self.udp.getsockname()[1]}"
        self.asked: list[str] = []

    def serve_udp(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, peer = self.udp.recvfrom(65_535)
                if not data:
                    return
                for wire in self._wires(data, is_tcp=False):
                    self.udp.sendto(wire, peer)

    def serve_tcp(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.tcp.accept()
                with connection, contextlib.suppress(OSError, struct.error):
                    (length,) = struct.unpack("!H", connection.recv(2))
                    for wire in self._wires(connection.recv(length), is_tcp=True):
                        connection.sendall(struct.pack("!H", len(wire)) + wire)

    def _wires(self, data: bytes, *, is_tcp: bool) -> list[bytes]:
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            return []
        self.asked.append(f"{query.question[0].name} {'tcp' if is_tcp else 'udp'}")
        answer = self.answers(query, is_tcp)
        if answer is None:
            return []
        if isinstance(answer, bytes):
            return [answer]
        return [answer.to_wire(max_size=65_535)]

    def close(self) -> None:
        self.udp.sendto(b"", self.udp.getsockname())
        self.tcp.shutdown(socket.SHUT_RDWR)
        self.udp.close()
        self.tcp.close()


def _one_port_for_both() -> tuple[socket.socket, socket.socket]:
    """A port that is free for UDP may be in use for TCP."""
    while True:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", 0))
        tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            tcp.bind(udp.getsockname())
        except OSError:
            udp.close()
            tcp.close()
            continue
        return udp, tcp


@contextlib.contextmanager
def name_server() -> Iterator[NameServer]:
    server = NameServer()
    threads = [threading.Thread(target=each, daemon=True) for each in (server.serve_udp, server.serve_tcp)]
    for thread in threads:
        thread.start()
    try:
        yield server
    finally:
        server.close()
        for thread in threads:
            thread.join(5)


class Zone:
    """The TXT records of one name, signed by a key of the zone where that is wanted."""

    def __init__(self, name: str, *records: str, is_signed: bool = False) -> None:
        self.name = dns.name.from_text(name)
        self.origin = self.name.parent()
        self.records = records
        self.is_signed = is_signed
        self.key = ed25519.Ed25519PrivateKey.generate()
        self.dnskey = dns.dnssec.make_dnskey(self.key.public_key(), dns.dnssec.Algorithm.ED25519)

    @property
    def txt(self) -> dns.rrset.RRset:
        return dns.rrset.from_text(self.name, 60, "IN", "TXT", *map(_quoted, self.records))

    def signature(self) -> dns.rrset.RRset:
        signed = dns.dnssec.sign(self.txt, self.key, self.origin, self.dnskey, lifetime=3600)
        return dns.rrset.from_rdata(self.name, 60, signed)

    def __call__(self, query: dns.message.Message, is_tcp: bool) -> dns.message.Message:
        answer = dns.message.make_response(query)
        asked = query.question[0]
        if asked.rdtype == dns.rdatatype.DNSKEY and self.is_signed:
            answer.answer.append(dns.rrset.from_rdata(self.origin, 60, self.dnskey))
        elif asked.rdtype == dns.rdatatype.TXT and asked.name == self.name and self.records:
            answer.answer.append(self.txt)
            if self.is_signed:
                answer.answer.append(self.signature())
        if not is_tcp and len(answer.to_wire(max_size=65_535)) > 1232:
            answer = dns.message.make_response(query)
            answer.flags |= dns.flags.TC
        return answer


def _quoted(text: str) -> str:
    parts = [text[start : start + 255] for start in range(0, len(text), 255)]
    escaped = (part.replace("\\", "\\\\").replace('"', '\\"') for part in parts)
    return " ".join(f'"{part}"' for part in escaped)
