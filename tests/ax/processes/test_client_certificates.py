"""Client certificates as proof of authority at /ax, shown to the node itself or passed on by a proxy (MCP-AX 4.2)."""

import asyncio
import contextlib
import datetime
import ipaddress
import json
import ssl
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import websockets
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from tests.ax.bare_subserver import SUBPROTOCOL, BareSubserver, Refused, tool
from tests.ax.blocking_client import ready
from tests.support import intervals
from tests.support.client_certificates import DAY, Certificate, Issuer
from tests.support.node_process import RunningNode, running_node, wait_for, write_config

EDGE = "edge01.example.com"
WRITES = [tool("read"), tool("write", annotations={"readOnlyHint": False})]
ACCESS = '[[access]]\nwho = ["local", "subserver:far"]\nscope = "write"\n'
IP = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))


class House:
    """A CA, what it issued, a CA that nobody trusts, and a list of what was revoked."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.ca, self.strange = Issuer(folder), Issuer(folder, "strange")
        self.server = self.ca.issue("hub", others=[IP])
        self.good, self.revoked = self.ca.issue("good", [EDGE]), self.ca.issue("revoked", [EDGE])
        self.crl = folder / "crl.pem"
        self.ca.revoke(self.crl, self.revoked)
        below = Issuer(folder, "no-ca", self.ca, ca=False)
        self.chained = below.issue("chained", [EDGE])
        self.chained.pem.write_bytes(self.chained.pem.read_bytes() + below.pem.read_bytes())

    def refused_by_name(self) -> dict[str, Certificate]:
        """Certificates that verify and do not say what is claimed."""
        uri, mail = x509.UniformResourceIdentifier(f"dns:{EDGE}"), x509.RFC822Name(f"x@{EDGE}")
        return {
            "another name": self.ca.issue("x", ["edge02.example.com"]),
            "a name around it": self.ca.issue("x", ["example.com", f"x.{EDGE}", f"{EDGE}.evil.example"]),
            "only a common name": self.ca.issue(EDGE),
            "a common name and another": self.ca.issue(EDGE, ["edge02.example.com"]),
            "a wildcard": self.ca.issue("x", ["*.example.com"]),
            "other kinds of names": self.ca.issue("x", others=[uri, mail, IP]),
        }

    def refused_by_tls(self) -> dict[str, Certificate]:
        """Certificates that do not verify at all."""
        return {
            "another CA": self.strange.issue("x", [EDGE]),
            "expired": self.ca.issue("x", [EDGE], starts=-3 * DAY, lasts=DAY),
            "not valid yet": self.ca.issue("x", [EDGE], starts=DAY),
            "for servers only": self.ca.issue("x", [EDGE], usage=[ExtendedKeyUsageOID.SERVER_AUTH]),
            "signed by no CA": self.chained,
        }


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("house") / "certificates")


def settings(house: House, more: str = "", *, crl: bool = True) -> str:
    return (
        f'{ACCESS}[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
        f'tls_cert = "{house.server.pem}"\ntls_key = "{house.server.key}"\nclient_ca = "{house.ca.pem}"\n'
        + (f'crl = "{house.crl}"\n' if crl else "")
        + more
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, house: House) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("direct"), {}, settings(house)) as started:
        yield started


async def connect(
    node: RunningNode, house: House, shown: Certificate | None, headers: dict[str, str] | None = None
) -> Any:
    context = None
    if node.url.startswith("https"):
        context = ssl.create_default_context(cafile=str(house.ca.pem))
        if shown is not None:
            context.load_cert_chain(shown.pem, shown.key)
    scheme = "ws" if context is None else "wss"
    return await websockets.connect(
        f"{scheme}://127.0.0.1:{node.port}/ax",
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        additional_headers=headers or {},
        ssl=context,
        compression=None,
        open_timeout=10,
    )


@contextlib.asynccontextmanager
async def leaf(
    node: RunningNode, house: House, shown: Certificate | None, **options: Any
) -> AsyncIterator[BareSubserver]:
    headers = options.pop("headers", None)
    options = {"authority": f"dns:{EDGE}", "tools": WRITES, **options}
    one = BareSubserver(await connect(node, house, shown, headers), f"s{uuid.uuid4().hex[:12]}", **options)
    try:
        yield one
    finally:
        await one.stop()


async def verified(node: RunningNode, house: House, shown: Certificate | None, **options: Any) -> bool:
    async with leaf(node, house, shown, **options) as one:
        await one.register()
        proved = (await asyncio.to_thread(node.link, one.segment))["registration"]["verified"]
        await ready(node, one.segment, tools=2 if proved else 1)
    await asyncio.to_thread(node.admin, f"/admin/links/{one.segment}/release", "POST", {})
    return bool(proved)


async def refusal(node: RunningNode, house: House, shown: Certificate | None, **options: Any) -> tuple[int, str]:
    async with leaf(node, house, shown, **options) as one:
        with pytest.raises(Refused) as refused:
            await one.register()
        return refused.value.error["code"], refused.value.error["data"]["reason"]


@pytest.mark.req("AX-4.2-9")
async def test_a_certificate_with_the_very_name_proves_the_authority(node: RunningNode, house: House) -> None:
    assert await verified(node, house, house.good) is True
    assert await verified(node, house, house.ca.issue("x", ["a.example.com", EDGE.upper()])) is True
    assert await verified(node, house, None) is False
    assert await verified(node, house, house.good, authority="DNS:EDGE01.example.com.") is True


@pytest.mark.req("AX-4.2-9")
async def test_a_certificate_for_anything_else_is_refused(node: RunningNode, house: House) -> None:
    shown = house.refused_by_name()
    found = {what: await refusal(node, house, one) for what, one in shown.items()}
    assert found == dict.fromkeys(shown, (32114, "certificate"))


@pytest.mark.req("AX-4.2-9")
async def test_a_certificate_that_does_not_verify_does_not_even_open_the_link(node: RunningNode, house: House) -> None:
    before = {link["segment"] for link in (await asyncio.to_thread(node.admin, "/admin/links"))["links"]}
    for what, one in house.refused_by_tls().items():
        with pytest.raises((ssl.SSLError, OSError, EOFError, websockets.InvalidMessage)):
            await connect(node, house, one)
            pytest.fail(f"a certificate passed: {what}")
    after = {link["segment"] for link in (await asyncio.to_thread(node.admin, "/admin/links"))["links"]}
    assert after == before


async def test_without_a_claim_a_certificate_is_nobodys_business(node: RunningNode, house: House) -> None:
    other = house.ca.issue("x", ["edge02.example.com"])
    async with leaf(node, house, other, authority=None) as one:
        del one.register_params["authority"]
        await one.register()
        assert (await asyncio.to_thread(node.link, one.segment))["registration"]["verified"] is False


@pytest.mark.req("AX-4.2-9")
async def test_a_revoked_certificate_is_refused_and_revoking_needs_no_restart(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    with running_node(tmp_path / "n", {}, settings(house)) as node:
        assert await refusal(node, house, house.revoked) == (32114, "certificate_revoked")
        assert await verified(node, house, house.good) is True
        house.ca.revoke(house.crl, house.revoked, house.good)
        assert await refusal(node, house, house.good) == (32114, "certificate_revoked")
        async with leaf(node, house, house.good, authority=None) as one:  # also where it claims nothing
            del one.register_params["authority"]
            with pytest.raises(Refused):
                await one.register()
        fresh = house.ca.issue("fresh", [EDGE])
        house.ca.revoke(house.crl, ends=-datetime.timedelta(hours=1))
        assert await refusal(node, house, fresh) == (32114, "revocation_unknown")
        house.strange.revoke(house.crl)
        assert await refusal(node, house, fresh) == (32114, "revocation_unknown")
        house.crl.write_text("nonsense")
        assert await refusal(node, house, fresh) == (32114, "revocation_unknown")
        house.crl.unlink()
        assert await refusal(node, house, fresh) == (32114, "revocation_unknown")
        house.ca.revoke(house.crl)
        assert await verified(node, house, fresh) is True
        said = (tmp_path / "n" / "stderr.txt").read_text().count("no client certificate counts")
        assert 0 < said < 10  # each trouble once, not each second


# Instead of a token


@pytest.mark.req("AX-10.1-3")
async def test_a_certificate_is_accepted_if_an_access_entry_names_it(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    named = '[[access]]\nwho = ["certificate:edge*.example.com"]\nscope = "write"\n'
    closed = settings(house).replace(ACCESS, "") + '[auth]\nanonymous = "never"\n[[access]]\nwho = ["*"]\n'

    async def status(node: RunningNode, shown: Certificate | None) -> int:
        with pytest.raises(websockets.InvalidStatus) as refused:
            await connect(node, house, shown)
        return refused.value.response.status_code

    with running_node(tmp_path / "n", {}, named + closed) as node:
        async with leaf(node, house, house.good) as one:
            await one.register()
            shown = (await ready(node, one.segment, tools=2))["registration"]
            assert (shown["principal"], shown["verified"]) == (f"certificate:{EDGE}", True)
            assert one.session["auth_scope"] == "write"
            for other in (
                None,
                house.revoked,
                house.ca.issue("x", ["hub.example.com"]),
                house.ca.issue(EDGE),
                house.ca.issue("x", ["*.example.com"]),
                house.ca.issue("x", ["hub.example.com", EDGE]),  # the first name is its name
            ):
                assert await status(node, other) == 401
            with pytest.raises(websockets.InvalidStatus):  # a wrong token is not mended by a certificate
                await connect(node, house, house.good, {"authorization": "Bearer ils_wrong"})
            # and ends with it
            house.ca.revoke(house.crl, house.revoked, house.good)
            assert (await one.closed())[0] == 4401
        assert await status(node, house.good) == 401
    with running_node(tmp_path / "n2", {}, closed) as node:  # who = ["*"] is not meant for certificates
        assert await status(node, house.ca.issue("x", [EDGE])) == 401


async def test_a_link_ends_with_the_certificate_it_began_with(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    with running_node(tmp_path / "n", {}, settings(house), settings={intervals.CREDENTIALS_LOOK_MS: 500}) as node:
        short = house.ca.issue("short", [EDGE], lasts=DAY + datetime.timedelta(seconds=3))
        async with leaf(node, house, short) as ends, leaf(node, house, house.good) as stays:
            await ends.register()
            await stays.register()
            assert (await ends.closed())[0] == 4401
            assert (await stays.beat())["status"] == "ok"


async def test_a_rule_that_is_taken_away_takes_its_certificates_along(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    named = f'[[access]]\nwho = ["certificate:{EDGE}"]\nscope = "write"\n'
    closed = settings(house).replace(ACCESS, "") + '[auth]\nanonymous = "never"\n'
    with running_node(tmp_path / "n", {}, named + closed) as node:
        async with leaf(node, house, house.good) as one:
            await one.register()
            node.config.write_text(node.config.read_text().replace(named, ""))
            assert (await one.closed())[0] == 4401


# Through a proxy


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory, house: House) -> Iterator[RunningNode]:
    extra = (
        f'{ACCESS}[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
        f'client_ca = "{house.ca.pem}"\ncrl = "{house.crl}"\ntrusted_proxies = ["127.0.0.1"]\n'
    )
    with running_node(tmp_path_factory.mktemp("behind"), {}, extra) as started:
        made = started.cli("access", "token", "--for", "subserver", "--name", "far")
        started.token = made.stdout.strip()  # type: ignore[attr-defined]
        yield started


def passed_on(node: RunningNode, **more: str) -> dict[str, str]:
    token: str = node.token  # type: ignore[attr-defined]
    base = {"x-forwarded-for": "203.0.113.9", "x-forwarded-proto": "https", "authorization": f"Bearer {token}"}
    return base | more


@pytest.mark.req("AX-4.2-9")
async def test_a_trusted_proxy_passes_a_certificate_on(behind: RunningNode, house: House) -> None:
    for header in (house.good.header, house.good.escaped):
        assert await verified(behind, house, None, headers=passed_on(behind, **{"client-cert": header})) is True
    assert await verified(behind, house, None, headers=passed_on(behind)) is False


@pytest.mark.req("AX-4.2-9")
async def test_certificates_passed_on_by_a_proxy_are_verified(behind: RunningNode, house: House) -> None:
    """Where the node sees the certificate itself, every defect has the refusal of the register request."""
    wrong = {what: (one, "certificate") for what, one in house.refused_by_name().items()}
    wrong |= {what: (one, "certificate_untrusted") for what, one in house.refused_by_tls().items()}
    wrong["revoked"] = (house.revoked, "certificate_revoked")
    found = {}
    for what, (one, _) in wrong.items():
        code, reason = await refusal(behind, house, None, headers=passed_on(behind, **{"client-cert": one.header}))
        assert code == 32114, what
        found[what] = reason
    # The verifier takes neither for a client's certificate; both are refused either way.
    for what in ("only a common name", "other kinds of names"):
        assert found.pop(what) in ("certificate", "certificate_untrusted")
        del wrong[what]
    assert found == {what: reason for what, (_, reason) in wrong.items()}


@pytest.mark.parametrize(
    "value", ["x", "::", ":!!:", ":AAAA:", "-----BEGIN%20CERTIFICATE-----", ":" + "A" * 8_000 + ":", "%zz"]
)
async def test_an_invalid_certificate_proves_nothing(behind: RunningNode, house: House, value: str) -> None:
    assert await refusal(behind, house, None, headers=passed_on(behind, **{"client-cert": value})) == (
        32114,
        "certificate",
    )


async def test_two_certificates_are_none(behind: RunningNode, house: House) -> None:
    headers: Any = [*passed_on(behind).items(), ("client-cert", house.good.header), ("client-cert", house.good.header)]
    assert await refusal(behind, house, None, headers=headers) == (32114, "certificate")


@pytest.mark.req("AX-4.2-9")
async def test_a_header_that_no_trusted_proxy_wrote_is_ignored(node: RunningNode, house: House) -> None:
    for header in (house.good.header, house.good.escaped):
        assert await verified(node, house, None, headers={"client-cert": header}) is False
        # and does not stand in for the certificate of the link
        other = house.ca.issue("x", ["edge02.example.com"])
        assert await refusal(node, house, other, headers={"client-cert": header}) == (32114, "certificate")


# The files


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ("client_ca missing", "client_ca"),
        ("client_ca nonsense", "client_ca"),
        ("client_ca of no CA", "no CA"),
        ("crl missing", "crl"),
        ("crl nonsense", "crl"),
        ("crl of another", "crl"),
        ("key of another", "own key"),
        ("tls_cert missing", "cannot be read"),
    ],
)
def test_files_that_cannot_be_used_stop_the_start_and_are_named(tmp_path: Path, broken: str, says: str) -> None:
    house = House(tmp_path / "certificates")
    text = settings(house)
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    other = {
        "client_ca missing": (house.ca.pem, tmp_path / "none"),
        "client_ca nonsense": (house.ca.pem, nonsense),
        "client_ca of no CA": (house.ca.pem, house.good.pem),
        "crl missing": (house.crl, tmp_path / "none"),
        "crl nonsense": (house.crl, nonsense),
        "key of another": (house.server.key, house.good.key),
        "tls_cert missing": (house.server.pem, tmp_path / "none"),
    }
    if broken in other:
        before, after = other[broken]
        text = text.replace(f'"{before}"', f'"{after}"')
    else:
        house.strange.revoke(house.crl)
    config = write_config(tmp_path / "n", {}, text)
    command = [sys.executable, "-m", "interlock", "serve", "--config", str(config), "--data", str(tmp_path / "data")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert says in ended.stderr and "Traceback" not in ended.stderr


# One command, as docs/tls.md says


def made(*words: str, folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "interlock", "access", "certificate", *words, "--folder", str(folder), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.mark.req("AX-10.4-1")
async def test_nodes_with_certificates_of_the_in_house_authority_register_over_tls_1_3(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    hub = made("hub.example.com", "--ip", "127.0.0.1", folder=folder)
    edge = made("edge", "--dns", EDGE, folder=folder)
    assert (hub["ca_made"], edge["ca_made"]) == (True, False)
    for path in (hub["tls_key"], edge["tls_key"], folder / "ca.key"):
        assert Path(path).stat().st_mode & 0o777 == 0o600
    listen = '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    above = f'{listen}tls_cert = "{hub["tls_cert"]}"\ntls_key = "{hub["tls_key"]}"\nclient_ca = "{hub["ca"]}"\n'
    with running_node(tmp_path / "hub", {}, ACCESS + above) as root:
        context = ssl.create_default_context(cafile=hub["ca"])
        reader, writer = await asyncio.open_connection("127.0.0.1", root.port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() == "TLSv1.3"
        writer.close()
        del reader
        parent = (
            f'{listen}[[ax.parents]]\nurl = "wss://127.0.0.1:{root.port}/ax"\nsegment = "edge"\n'
            f'authority = "dns:{EDGE}"\nca_file = "{edge["ca"]}"\n'
        )
        shows = f'tls_cert = "{edge["tls_cert"]}"\ntls_key = "{edge["tls_key"]}"\n'
        with running_node(tmp_path / "edge", {}, parent + shows):
            link = await ready(root, "edge")
            assert (link["kind"], link["registration"]["verified"]) == ("aggregator", True)
        # Without the certificate the claim is not proved, and the segment belongs to who proved it.
        with running_node(tmp_path / "edge", {}, parent) as below:
            shown = await asyncio.to_thread(wait_for, lambda: _refused(below), 20.0)
            assert "authority_unverified" in shown["reason"]
        # Without the CA the child does not take the parent for who it is.
        unknown = parent.replace(f'ca_file = "{edge["ca"]}"\n', "")
        with running_node(tmp_path / "edge", {}, unknown + shows) as below:
            shown = await asyncio.to_thread(wait_for, lambda: _refused(below), 20.0)
            assert "certificate" in shown["reason"]


async def test_a_node_whose_certificate_is_not_accepted_learns_where_to_look(tmp_path: Path) -> None:
    house = House(tmp_path / "certificates")
    strange = house.strange.issue("x", [EDGE])
    with running_node(tmp_path / "hub", {}, settings(house)) as root:
        parent = (
            f'[[ax.parents]]\nurl = "wss://127.0.0.1:{root.port}/ax"\nsegment = "edge"\nauthority = "dns:{EDGE}"\n'
            f'ca_file = "{house.ca.pem}"\ntls_cert = "{strange.pem}"\ntls_key = "{strange.key}"\n'
        )
        with running_node(tmp_path / "edge", {}, parent) as below:
            shown = await asyncio.to_thread(wait_for, lambda: _refused(below), 20.0)
            assert "client_ca" in shown["next_step"]
            assert shown["state"] != "registered"


def _refused(node: RunningNode) -> Any:
    (parent,) = node.admin("/admin/status")["parents"]
    return parent["reason"] is not None and parent


async def test_a_certificate_revoked_by_the_command_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    hub = made("hub", "--ip", "127.0.0.1", folder=folder)
    edge, other = made("edge", "--dns", EDGE, folder=folder), made("other", "--dns", EDGE, folder=folder)
    crl = made("other", "--revoke", folder=folder)["crl"]
    text = (
        f'{ACCESS}[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\ntls_cert = "{hub["tls_cert"]}"\n'
        f'tls_key = "{hub["tls_key"]}"\nclient_ca = "{hub["ca"]}"\ncrl = "{crl}"\n'
    )

    async def joined(root: RunningNode, paths: dict[str, Any]) -> tuple[int, str] | None:
        context = ssl.create_default_context(cafile=paths["ca"])
        context.load_cert_chain(paths["tls_cert"], paths["tls_key"])
        socket = await websockets.connect(
            f"wss://127.0.0.1:{root.port}/ax", subprotocols=[websockets.Subprotocol(SUBPROTOCOL)], ssl=context
        )
        one = BareSubserver(socket, f"s{uuid.uuid4().hex[:12]}", authority=f"dns:{EDGE}")
        try:
            await one.register()
        except Refused as refused:
            return refused.error["code"], refused.error["data"]["reason"]
        finally:
            await one.stop()
        return None

    with running_node(tmp_path / "hub", {}, text) as root:
        assert await joined(root, edge) is None
        assert await joined(root, other) == (32114, "certificate_revoked")
        made("edge", "--revoke", folder=folder)
        assert await joined(root, edge) == (32114, "certificate_revoked")
        assert await joined(root, other) == (32114, "certificate_revoked")  # it stays on the list
        assert await joined(root, made("edge", "--dns", EDGE, "--renew", folder=folder)) is None


@pytest.mark.parametrize(
    "words",
    [
        ("*.example.com",),
        ("ca",),
        ("CRL",),
        ("../evil",),
        ("a/b",),
        ("edge", "--dns", "192.0.2.1"),
        ("edge", "--dns", "under_score.example"),
        ("edge", "--ip", "example.com"),
        ("edge", "--days", "0"),
        ("edge", "--revoke"),
        ("edge", "--revoke", "--dns", "x.example"),
        (" edge",),
    ],
)
def test_a_failed_certificate_command_leaves_no_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    folder = tmp_path / "tls"
    command = [sys.executable, "-m", "interlock", "access", "certificate", *words, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr and "went wrong inside" not in done.stderr
    assert not folder.exists()


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path) -> None:
    folder = tmp_path / "tls"
    first = Path(made("edge", "--dns", EDGE, folder=folder)["tls_cert"]).read_bytes()
    command = [sys.executable, "-m", "interlock", "access", "certificate", "edge", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1 and "--renew" in done.stderr
    assert (folder / "edge.pem").read_bytes() == first
    again = Path(made("edge", "--renew", folder=folder)["tls_cert"]).read_bytes()
    assert again != first
    renewed = x509.load_pem_x509_certificate(again)
    names = renewed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [EDGE]  # nobody said otherwise
