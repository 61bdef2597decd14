"""Certificates of two CAs with the same name: a revocation list counts for the CA that signed it."""

from pathlib import Path

import pytest
from tests.support.client_certificates import Certificate, Issuer

from interlock.approvals.trust.client_certificates import Certificates
from interlock.approvals.trust.registrant import ClientCertificate
from interlock.core.clock import Clock
from interlock.wire.refusal import Refusal

EDGE = "edge01.example.com"


class TwoHouses:
    """Two CAs that are both trusted and have one name, as after the change of a CA's key."""

    def __init__(self, folder: Path) -> None:
        self.issuers = []
        for name in ("old", "new"):
            (folder / name).mkdir()
            self.issuers.append(Issuer(folder / name))
        self.old, self.new = self.issuers
        self.file, self.crl = folder / "both.pem", folder / "crl.pem"
        self.file.write_bytes(b"".join(issuer.pem.read_bytes() for issuer in self.issuers))

    def revoke(self, revoked: dict[Issuer, list[Certificate]]) -> None:
        text = b""
        for issuer, certificates in revoked.items():
            issuer.revoke(self.crl, *certificates)
            text += self.crl.read_bytes()
        self.crl.write_bytes(text)

    def judge(self, shown: Certificate) -> str:
        certificates = Certificates(self.file, self.crl, Clock())
        outcome = certificates.of_link(shown.der)
        assert certificates.of_header([(b"client-cert", shown.header.encode())]) == outcome
        if isinstance(outcome, Refusal):
            return str((outcome.details or {})["reason"])
        assert isinstance(outcome, ClientCertificate)
        return "admitted"


@pytest.mark.req("AX-4.2-9")
def test_the_list_of_a_namesake_says_nothing_about_a_certificate(tmp_path: Path) -> None:
    houses = TwoHouses(tmp_path)
    of_old, of_new = houses.old.issue("x", [EDGE]), houses.new.issue("x", [EDGE])
    houses.revoke({houses.new: []})
    assert (houses.judge(of_old), houses.judge(of_new)) == ("revocation_unknown", "admitted")
    houses.revoke({houses.old: [of_old], houses.new: []})
    assert (houses.judge(of_old), houses.judge(of_new)) == ("certificate_revoked", "admitted")
    houses.revoke({houses.old: [], houses.new: [of_new]})
    assert (houses.judge(of_old), houses.judge(of_new)) == ("admitted", "certificate_revoked")


@pytest.mark.req("AX-4.2-9")
def test_names_that_only_look_like_a_name_are_no_name(tmp_path: Path) -> None:
    houses = TwoHouses(tmp_path)
    houses.revoke({houses.old: [], houses.new: []})
    certificates = Certificates(houses.file, houses.crl, Clock())
    for name in (f"{EDGE}\0.evil.example", "*", "*.example.com", "edge01.example.com ", "edge01..com", "127.0.0.1"):
        shown = certificates.of_link(houses.old.issue("x", [name]).der)
        principal = shown.principal if isinstance(shown, ClientCertificate) else None
        assert principal is None, name
