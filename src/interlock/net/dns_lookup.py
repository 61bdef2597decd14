"""TXT records by DNS, with what is known of their signatures. Answers are bounded in size, number and time.

A timeout or a failing resolver raises DnsFailed and never counts as the absence of records. Only what the answer says
about the very name that was asked for, or names it is an alias of, counts; anything else in it is ignored.

Signatures are judged in two steps. A resolver that validates says so with the AD flag ("authenticated"). Otherwise the
signature is checked here with the keys that the zone itself publishes: that shows that the answer was not changed on
the way, and not who owns the keys ("signed").
"""

import contextlib
import ipaddress
from collections.abc import Sequence
from typing import Final, Literal

import dns.asyncquery
import dns.dnssec
import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.resolver
import dns.rrset
import msgspec

LOOKUP_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 16 * 1024
RECORDS_MAX: Final = 16
PAYLOAD_BYTES: Final = 1232  # over UDP, so that nothing is sent in fragments
PORT: Final = 53

# authenticated: the resolver has proved it up to the root. signed: the zone's own keys have signed it, which is proved
# here, and who owns the keys is not. bogus: it is signed, and the signature is wrong.
DnssecState = Literal["authenticated", "signed", "unsigned", "bogus"]


class DnsFailed(Exception):
    """An error raised if a lookup has no usable answer.

    `code`: timeout, unreachable, refused, too_large or malformed.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TxtAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The TXT records of a name, and whether they are signed."""

    records: tuple[bytes, ...]  # the strings of each record, joined; none: the name has none
    dnssec: DnssecState
    resolver: str


async def look_up_txt(name: str, resolvers: Sequence[str] = (), *, timeout_s: float | None = None) -> TxtAnswer:
    """Look up the TXT records of a name, and return the first answer. Raise DnsFailed if there is no usable answer.

    `resolvers` are addresses with an optional port, as in `[::1]:53` and `127.0.0.1:53`. The default is the resolvers
    of this machine.
    """

    failed: DnsFailed | None = None
    if not resolvers:
        with contextlib.suppress(dns.exception.DNSException):
            resolvers = [str(each) for each in dns.resolver.Resolver().nameservers]
    for resolver in resolvers:
        try:
            return await _ask(name, resolver, LOOKUP_S if timeout_s is None else timeout_s)
        except DnsFailed as error:
            if error.code not in {"timeout", "unreachable"}:
                raise
            failed = error
    raise failed or DnsFailed("unreachable", "this machine has no resolver")


async def _ask(name: str, resolver: str, timeout_s: float) -> TxtAnswer:
    """Query one resolver for the TXT records of a name. Raise DnsFailed if it gives no usable answer."""

    try:
        dns_name = dns.name.from_text(name)
    except dns.exception.DNSException:
        raise DnsFailed("malformed", f"{name} is no name that DNS can have") from None
    answer = await _exchange(dns_name, dns.rdatatype.TXT, resolver, timeout_s)
    code = answer.rcode()
    if code not in (dns.rcode.NOERROR, dns.rcode.NXDOMAIN):
        text = dns.rcode.to_text(code)
        raise DnsFailed("refused", f"{resolver} answers {text}; where records are signed, their signature may be wrong")
    is_authenticated = bool(answer.flags & dns.flags.AD)
    try:
        rrset = answer.resolve_chaining().answer if isinstance(answer, dns.message.QueryMessage) else None
    except dns.exception.DNSException:
        raise DnsFailed("malformed", "its aliases lead nowhere") from None
    if rrset is None:
        return TxtAnswer(records=(), dnssec="authenticated" if is_authenticated else "unsigned", resolver=resolver)
    if len(rrset) > RECORDS_MAX:
        raise DnsFailed("too_large", f"{name} has {len(rrset)} records; at most {RECORDS_MAX} are read")
    records = tuple(b"".join(each.strings) for each in rrset)
    if is_authenticated:
        return TxtAnswer(records=records, dnssec="authenticated", resolver=resolver)
    dnssec = await _check_signature(answer, rrset, resolver, timeout_s)
    return TxtAnswer(records=records, dnssec=dnssec, resolver=resolver)


async def _check_signature(
    answer: dns.message.Message, records: dns.rrset.RRset, resolver: str, timeout_s: float
) -> DnssecState:
    """Check the records against the keys that their zone publishes. Return "signed", "unsigned" or "bogus"."""

    signatures = answer.get_rrset(
        answer.answer, records.name, dns.rdataclass.IN, dns.rdatatype.RRSIG, covers=dns.rdatatype.TXT
    )
    if signatures is None:
        return "unsigned"
    zone = signatures[0].signer
    if len(signatures) > RECORDS_MAX or not records.name.is_subdomain(zone):
        return "bogus"
    keys = await _exchange(zone, dns.rdatatype.DNSKEY, resolver, timeout_s)
    published = keys.get_rrset(keys.answer, zone, dns.rdataclass.IN, dns.rdatatype.DNSKEY)
    if published is None or len(published) > RECORDS_MAX:
        return "bogus"
    try:
        dns.dnssec.validate(records, signatures, {zone: published})
    except (dns.exception.DNSException, ValueError):
        return "bogus"
    return "signed"


async def _exchange(
    name: dns.name.Name, kind: dns.rdatatype.RdataType, resolver: str, timeout_s: float
) -> dns.message.Message:
    """Send a query to a resolver and return its answer. Answers to other questions, and from other addresses, are
    ignored.
    """

    host, port = _address(resolver)
    flags = dns.flags.RD | dns.flags.AD
    query = dns.message.make_query(name, kind, want_dnssec=True, payload=PAYLOAD_BYTES, flags=flags)
    try:
        answer, _ = await dns.asyncquery.udp_with_fallback(
            query, host, timeout=timeout_s, port=port, ignore_unexpected=True, ignore_errors=True
        )
    except dns.exception.Timeout:
        raise DnsFailed("timeout", f"{resolver} did not answer within {timeout_s:g} s") from None
    except (OSError, EOFError):
        raise DnsFailed("unreachable", f"{resolver} cannot be reached") from None
    except (dns.exception.DNSException, ValueError):
        raise DnsFailed("malformed", f"{resolver} answers what is not DNS") from None
    if len(answer.wire or b"") > ANSWER_BYTES_MAX:
        raise DnsFailed("too_large", f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return answer


def _address(resolver: str) -> tuple[str, int]:
    """Parse the address and port of a resolver. Raise DnsFailed if it is malformed."""
    host, port = resolver, PORT
    if resolver.startswith("["):
        host, _, rest = resolver[1:].partition("]")
        port = _port(rest.removeprefix(":")) if rest else PORT
    elif resolver.count(":") == 1:
        host, _, rest = resolver.partition(":")
        port = _port(rest)
    try:
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        raise DnsFailed("malformed", f"{resolver} is no address of a resolver") from None


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text[:6]) < 65_536:
        raise DnsFailed("malformed", f"{text} is no port")
    return int(text)
