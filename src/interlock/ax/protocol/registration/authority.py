"""Who a registrant may say it is (MCP-AX 4.2): the syntax of an authority, and what proves a claim of one.

An authority is kept as a DNS name in lower case, without its scheme and without a trailing dot. A claim is proved by a
JWT under a key of an anchor that speaks for the authority, or by a client certificate with that very name. The rules
are here; signatures and chains are verified elsewhere (`verify`, the TLS library), and the caller remembers every `jti`
that was used. Every refusal is authority_unverified with a word in data.reason.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, Literal

import msgspec

from interlock.ax.protocol.messages import AuthorityProof
from interlock.crypto.jose import SKEW_S, InvalidToken, Jwk, Jwt, Reason, TokenClaims, read_jwt_untrusted, select
from interlock.net.protocol.dns import find_dns_name
from interlock.net.protocol.uri import same_resource
from interlock.wire.refusal import AUTHORITY_UNVERIFIED, Refusal, ax_refusal

SCHEME: Final = "dns:"
PROOF_S_MAX: Final = 600.0  # how long after it was made a proof may say it is good; AX-4.2-8
PROOF_S: Final = 120  # how long ours are: what two clocks may differ by, and a slow link
JTI_MAX: Final = 255
KEY_UNKNOWN: Final = "key_unknown"  # data.reason: an anchor's key set may have been renewed since

_ALGORITHMS: Final = frozenset(("EdDSA", "ES256", "RS256"))  # AX-4.2-8
_TYPES: Final = frozenset(("", "jwt"))  # an access token or a confirmation under the same key is no proof of authority

Verify = Callable[[Jwt, Jwk], InvalidToken | None]  # None: the signature holds


class Anchor(msgspec.Struct, frozen=True, kw_only=True):
    """Keys that an operator trusts, with the authorities they may vouch for and the calls they may approve."""

    name: str
    keys: tuple[Jwk, ...]
    speaks_for: frozenset[str] = frozenset()
    approves: tuple[str, ...] = ()  # tools (globs over qualified names) whose calls they may approve
    source: Literal["key", "jwks", "passkey"] = "key"  # a key set is a service's; the others are a person's own


class Proved(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a valid proof of authority. They count only if the pair (anchor, jti) was not used before.

    The pair must be remembered until `expires_at`, in UNIX time.
    """

    authority: str
    anchor: str
    jti: str
    expires_at: float


def maybe_authority(text: str) -> str | None:
    """Return the DNS name from an authority written as "dns:NAME", or None if `text` has another form."""
    head, name = text[: len(SCHEME)], text[len(SCHEME) :]
    return find_dns_name(name) if head.lower() == SCHEME else None  # AX-4.2-4


def judge_proof(
    proof: AuthorityProof,
    authority: str,
    *,
    audiences: Sequence[str],
    anchors: Sequence[Anchor],
    now: float,
    verify: Verify,
) -> Proved | Refusal:
    """Verify the proof of an authority. Return the facts of a valid proof, or a refusal.

    `audiences` are the names of this aggregator: its URLs and its aggregator_id. `now` is UNIX time. A refusal with the
    reason KEY_UNKNOWN may mean that an anchor's key set was renewed.
    """
    jwt = read_jwt_untrusted(proof.token, _TYPES)
    if isinstance(jwt, InvalidToken):
        return _refusal(jwt.reason)
    if jwt.alg not in _ALGORITHMS:  # AX-4.2-8
        return _refusal(Reason.ALGORITHM)
    match = _key(jwt, authority, anchors)
    if isinstance(match, Refusal):
        return match
    anchor, key = match
    if (invalid := verify(jwt, key)) is not None:
        return _refusal(invalid.reason)
    return _judge_claims(jwt.claims, authority, anchor.name, audiences, now)


def proof_claims(authority: str, audience: str, *, now: float, jti: str) -> dict[str, object]:
    """Return the JWT claims that a registrant signs for each registration.

    `now` is UNIX time, `jti` is random.
    """
    at = int(now)
    return {"sub": f"{SCHEME}{authority}", "aud": audience, "iat": at, "exp": at + PROOF_S, "jti": jti}


def audience_of(url: str) -> str:
    """Return the audience that a proof must name for the aggregator at this WebSocket address: its URL with http or
    https.
    """
    scheme, mark, rest = url.partition("://")
    return {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme) + mark + rest


def replay_refusal() -> Refusal:
    """Return the refusal of a proof that was used before."""
    return unverified_refusal("replayed", "the proof was used before; make one for each registration")


def check_certificate(authority: str, dns_names: Iterable[str]) -> Refusal | None:
    """Return why a client certificate does not prove an authority, or None if it does.

    `dns_names` are its SAN entries of type dNSName; the chain and the dates are already verified. The subject's common
    name does not count (RFC 9525 2), and a wildcard is not a name.
    """
    if any(find_dns_name(name) == authority for name in dns_names):  # AX-4.2-9
        return None
    return unverified_refusal("certificate", f"the client certificate has no DNS name {authority}")


def unverified_refusal(reason: str, why: str) -> Refusal:
    return ax_refusal(AUTHORITY_UNVERIFIED, why, reason=reason)


WORDS: Final = {  # of whatever is proved by a signed token
    Reason.MALFORMED: ("malformed", "the proof cannot be read as a JWT"),
    Reason.UNSUPPORTED: ("malformed", "the proof asks for an extension that is not supported"),
    Reason.TYPE: ("type", "the proof is a token of another kind; its typ must be JWT"),
    Reason.ALGORITHM: ("algorithm", "the proof must be signed with EdDSA, ES256 or RS256"),
    Reason.KEY_UNKNOWN: (KEY_UNKNOWN, "the proof is signed with a key that no anchor has"),
    Reason.KEY_UNFIT: ("key_unfit", "the key of the proof must not be used like this"),
    Reason.SIGNATURE: ("signature", "the signature of the proof is wrong"),
}


def _refusal(reason: Reason) -> Refusal:
    word, why = WORDS.get(reason, ("malformed", reason.value))
    return unverified_refusal(word, why)


def _key(jwt: Jwt, authority: str, anchors: Sequence[Anchor]) -> tuple[Anchor, Jwk] | Refusal:
    """Return the key that a proof names and the anchor that contains it, or a refusal if no anchor has this key for the
    authority.

    Only anchors that may vouch for the authority are searched, because anybody can name a key id.
    """
    speaking = [anchor for anchor in anchors if authority in anchor.speaks_for]
    key = select(list(dict.fromkeys(key for anchor in speaking for key in anchor.keys)), jwt.alg, jwt.kid)
    if isinstance(key, Jwk):
        return next(anchor for anchor in speaking if key in anchor.keys), key
    others = [key for anchor in anchors if anchor not in speaking for key in anchor.keys]
    # AX-4.2-8: the key of another
    if key.reason is Reason.KEY_UNKNOWN and isinstance(select(others, jwt.alg, jwt.kid), Jwk):
        return unverified_refusal("key_of_another", f"the key of the proof does not speak for {authority}")
    return _refusal(key.reason)


def _judge_claims(
    claims: TokenClaims, authority: str, anchor: str, audiences: Sequence[str], now: float
) -> Proved | Refusal:
    subject = claims.sub or ""
    if authority not in (maybe_authority(subject), find_dns_name(subject)):  # AX-4.2-8: sub
        return unverified_refusal("subject", f"sub of the proof must be {SCHEME}{authority}")
    claimed = [claims.aud] if isinstance(claims.aud, str) else claims.aud
    # AX-4.2-8: aud
    if not any(same_resource(each.rstrip("/"), own.rstrip("/")) for each in claimed for own in audiences):
        own = " or ".join(dict.fromkeys(audiences))
        return unverified_refusal("audience", f"aud of the proof must be what this aggregator is called: {own}")
    if (fault := find_time_fault(claims, now, PROOF_S_MAX)) is not None:
        return unverified_refusal(*fault)
    if not isinstance(claims.jti, str) or not 0 < len(claims.jti) <= JTI_MAX:
        return unverified_refusal("claims", f"the proof must have a jti of 1 to {JTI_MAX} characters")
    return Proved(authority=authority, anchor=anchor, jti=claims.jti, expires_at=claims.exp or now)


def find_time_fault(claims: TokenClaims, now: float, lifetime_s: float) -> tuple[str, str] | None:
    """Return why a proof is not valid at the time `now`, as a code and a text for people. Return None if its times are
    right.

    `lifetime_s` is the longest time that a proof of this kind may be valid.
    """
    if claims.iat is None or claims.exp is None:
        return "claims", "the proof must have iat and exp"
    if claims.iat > now + SKEW_S or (claims.nbf is not None and claims.nbf > now + SKEW_S):  # AX-4.2-8: iat
        return "not_yet", "the proof is not valid yet; compare the clocks"
    if now >= claims.exp:  # AX-4.2-8: exp
        return "expired", "the proof has expired"
    if claims.exp - claims.iat > lifetime_s:  # AX-4.2-8
        return "lifetime", f"exp of the proof must be at most {lifetime_s:.0f} seconds after iat"
    return None
