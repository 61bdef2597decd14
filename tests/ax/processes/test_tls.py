"""Links beyond this machine: TLS, and TLS 1.3 between aggregators (MCP-AX 10.4)."""

import asyncio
import datetime
import ipaddress
import ssl
import uuid
from pathlib import Path
from typing import Any

import pytest
import websockets
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.ax.bare_subserver import SUBPROTOCOL, BareSubserver, Refused
from tests.ax.processes.test_doors import _own_address
from tests.support.node_process import RunningNode, running_node


def _certificate(folder: Path, address: str) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .sign(key, hashes.SHA256())
    )
    cert, secret = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert, secret


async def _connect(node: RunningNode, cert: Path, token: str | None, most: ssl.TLSVersion) -> Any:
    context = ssl.create_default_context(cafile=str(cert))
    context.maximum_version = most
    return await websockets.connect(
        f"wss://{node.host}:{node.port}/ax",
        subprotocols=[websockets.Subprotocol(SUBPROTOCOL)],
        additional_headers={} if token is None else {"authorization": f"Bearer {token}"},
        ssl=context,
        compression=None,
    )


@pytest.mark.req("AX-10.4-1", "AX-10.1-3")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_an_aggregator_needs_tls_1_3_and_a_leaf_any_tls(tmp_path: Path) -> None:
    own = _own_address()
    if own is None:
        pytest.skip("this machine has no address beside loopback")
    cert, key = _certificate(tmp_path, own)
    extra = f'[node]\nlisten = "{own}:0"\noperator_listen = "127.0.0.1:0"\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
    with running_node(tmp_path, {}, extra=extra) as node:
        token = node.cli("access", "token", "--for", "subserver", "--name", "far").stdout.strip()
        with pytest.raises(websockets.InvalidStatus) as unknown:  # from this machine, but not over loopback
            await _connect(node, cert, None, ssl.TLSVersion.TLSv1_3)
        assert unknown.value.response.status_code == 401
        below = {"x-mcpax-subtree-ids": [str(uuid.uuid4())]}
        older = BareSubserver(await _connect(node, cert, token, ssl.TLSVersion.TLSv1_2), "older", **below)
        with pytest.raises(Refused) as refused:
            await older.register()
        assert refused.value.error["message"] == "link_insecure"
        newer = BareSubserver(await _connect(node, cert, token, ssl.TLSVersion.TLSv1_3), "newer", **below)
        assert (await newer.register())["assigned_segment"] == "newer"
        leaf = BareSubserver(await _connect(node, cert, token, ssl.TLSVersion.TLSv1_2), "leaf")
        assert (await leaf.register())["assigned_segment"] == "leaf"
        with pytest.raises(Refused) as turned:  # a leaf that turns into an aggregator must have been secure
            await leaf.beat(**below)
        assert turned.value.error["message"] == "link_insecure"
        assert (await asyncio.to_thread(node.link, "newer"))["kind"] == "aggregator"
        for one in (older, newer, leaf):
            await one.stop()
