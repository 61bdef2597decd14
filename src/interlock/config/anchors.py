"""[[anchor]] entries: whose public key, and where it is found. Read as far as no file and no library is needed.

A public key that is written out is recognised by how it begins; everything else is the name of a file.
"""

from pathlib import Path
from typing import Any, Final

from interlock.ax.protocol.registration.authority import maybe_authority
from interlock.config.location import WRONG, At, WrongValue
from interlock.config.plan import AnchorPlan
from interlock.config.record_types import Protected
from interlock.config.value_types import ValueType, read_text, resolve
from interlock.crypto.jose.public_key import PRIVATE, BadKey, find_pem_label, is_key_text, read_key_untrusted
from interlock.crypto.webauthn.passkeys import read_passkey_untrusted
from interlock.net.protocol.dns_name import maybe_dns_name

KEY_SOURCES: Final = ("key", "jwks", "passkey")
_FORMS: Final = "write ed25519:BASE64, a JWK, a PEM block with PUBLIC KEY, or the name of a file with one of them"


class PublicKey(ValueType, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> str | Path | WrongValue:
        text = read_text(value, at, "a public key or a file")
        if isinstance(text, WrongValue):
            return WRONG
        if not is_key_text(text):
            return resolve(text, at)
        label = find_pem_label(text)
        try:
            if label is None:
                read_key_untrusted(text)
            elif "PRIVATE" in label:
                raise BadKey(PRIVATE)
        except BadKey as bad:
            return at.wrong(f"{at.name} is not a public key: {bad}", _FORMS)
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


class Passkey(ValueType, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, "a passkey")
        if isinstance(text, WrongValue):
            return WRONG
        try:
            read_passkey_untrusted(text)
        except BadKey as bad:
            return at.wrong(f"{at.name} is not a passkey: {bad}", "interlock access passkey NAME prints the line")
        return text

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^(?:es256|ed25519|rs256):[A-Za-z0-9_-]+:[A-Za-z0-9_-]+$"}


class KeySet(ValueType, frozen=True, kw_only=True):
    def read(self, value: object, at: At) -> str | Path | WrongValue:
        text = read_text(value, at, "a URL or a file")
        if isinstance(text, WrongValue):
            return WRONG
        return Protected().read(text, at) if "://" in text else resolve(text, at)

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


class DnsName(ValueType, frozen=True, kw_only=True):
    """A host name, with or without "dns:" before it, as it is compared."""

    def read(self, value: object, at: At) -> str | WrongValue:
        text = read_text(value, at, "a DNS name")
        if isinstance(text, WrongValue):
            return WRONG
        name = maybe_authority(text) or maybe_dns_name(text)
        if name is None:
            hint = 'for instance "edge01.example.com"; no wildcard, no address, and each name by itself'
            return at.wrong(f"{at.name} must be a DNS name", hint)
        return name

    def schema(self) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^(?:[Dd][Nn][Ss]:)?[A-Za-z0-9.-]{1,254}$"}


def anchor_plan(values: dict[str, Any], at: At) -> AnchorPlan | WrongValue:
    given = [name for name in KEY_SOURCES if name in values]
    if len(given) != 1:
        which = f"has {' and '.join(given)}" if given else "has no key"
        return at.wrong(f"{at.title} {which}", f"give one of {', '.join(KEY_SOURCES)}")
    anchor = AnchorPlan(**values)
    if anchor.passkey is not None and anchor.speaks_for:
        return at.inside("speaks_for").wrong(
            f"{at.title} is a person's passkey, which speaks for no subserver", "give the subserver's key instead"
        )
    if not anchor.approves and not anchor.speaks_for:
        at.warn(f"{at.title} is trusted for nothing", "give approves = [tools] or speaks_for = [names]")
    return anchor
