"""Proofs of authority at /ax: JWTs under anchors, in every way they can be wrong; other means (MCP-AX 4.2)."""

import asyncio
import contextlib
import http.server
import json
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.ax.bare_subserver import BareSubserver, Refused, bare_subserver, connect, tool
from tests.ax.blocking_client import call, listed, ready
from tests.servers.minting import SigningKey, confused, key, mint, tampered, unsigned
from tests.support.node_process import RunningNode, running_node, wait_for

from interlock.sdk.subserver import Subserver

EDGE, OTHER = "edge01.example.com", "other.example.com"
PEM, JWK, SET, STRANGER = key("ES256", ""), key("RS256", "rsa"), key("EdDSA", "first"), key("EdDSA", "stranger")


class KeySet:
    """A key set at a URL, as the test wants it."""

    def __init__(self) -> None:
        self.keys: list[SigningKey] = [SET]
        self.status = 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = json.dumps({"keys": [one.jwk() for one in outer.keys]}).encode()
                self.send_response(outer.status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/jwks"

    @contextlib.contextmanager
    def serving(self) -> Iterator["KeySet"]:
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            thread.join()
            self.server.server_close()


def anchors(folder: Path, url: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "edge.pem").write_bytes(PEM.pem())
    return f"""
[[access]]
who = ["local"]
scope = "write"
[[anchor]]
name = "pem"
key = "{folder / "edge.pem"}"
speaks_for = ["{EDGE}"]
[[anchor]]
name = "jwk"
key = '{json.dumps(JWK.jwk())}'
speaks_for = ["{EDGE}", "both.example.com"]
[[anchor]]
name = "set"
jwks = "{url}"
speaks_for = ["dns:{EDGE}"]
[[anchor]]
name = "others"
key = '{json.dumps(key("EdDSA", "others").jwk())}'
speaks_for = ["{OTHER}"]
[[anchor]]
name = "approver"
key = '{json.dumps(key("EdDSA", "approver").jwk())}'
approves = ["*"]
"""


@pytest.fixture(scope="module")
def keyset() -> Iterator[KeySet]:
    with KeySet().serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, keyset: KeySet) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("proofs")
    with running_node(folder, {}, anchors(folder, keyset.url)) as started:
        yield started


def claims(node: RunningNode, **changes: Any) -> dict[str, Any]:
    now = int(time.time())
    said = {"sub": f"dns:{EDGE}", "aud": f"{node.url}/ax", "iat": now, "exp": now + 60, "jti": uuid.uuid4().hex}
    return {name: value for name, value in (said | changes).items() if value is not None}


def proof(token: str) -> dict[str, Any]:
    return {"type": "jwt", "token": token}


async def refusal(node: RunningNode, sent: Any, authority: str = f"dns:{EDGE}") -> tuple[int, str]:
    """The code and the reason with which a registration is refused; nothing is listed for it."""
    segment = f"s{uuid.uuid4().hex[:12]}"
    leaf = BareSubserver(await connect(node), segment, authority=authority, authority_proof=sent)
    with pytest.raises(Refused) as refused:
        await leaf.register()
    await leaf.stop()
    assert all(link["segment"] != segment for link in (await asyncio.to_thread(node.admin, "/admin/links"))["links"])
    error = refused.value.error
    return error["code"], (error.get("data") or {}).get("reason", "")


WRITES = [tool("read"), tool("write", annotations={"readOnlyHint": False})]


@pytest.mark.req("AX-4.2-8")
@pytest.mark.parametrize(
    ("signer", "header"), [(PEM, {"kid": None}), (JWK, {}), (SET, {})], ids=["ES256 PEM", "RS256 JWK", "EdDSA key set"]
)
@pytest.mark.parametrize("named", [f"dns:{EDGE}", EDGE, EDGE.upper()])
async def test_a_jwt_under_an_anchor_proves_the_authority(
    node: RunningNode, signer: SigningKey, header: dict[str, Any], named: str
) -> None:
    for audience in (f"{node.url}/ax", node.url, node.status_at_start["node"]["aggregator_id"]):
        token = mint(signer, claims(node, sub=named, aud=audience), typ="JWT", **header)
        segment = f"s{uuid.uuid4().hex[:12]}"
        async with bare_subserver(node, segment, tools=WRITES, authority=f"dns:{EDGE}", authority_proof=proof(token)):
            link = await ready(node, segment, tools=2)
            assert link["registration"]["verified"] is True
        freed = await asyncio.to_thread(node.cli, "links", "release", segment)
        assert freed.returncode == 0, freed.stderr


async def test_mutable_tools_are_callable_with_proved_authority_and_withheld_without(node: RunningNode) -> None:
    token = mint(JWK, claims(node), typ="JWT")
    async with bare_subserver(node, "proved", tools=WRITES, authority=f"dns:{EDGE}", authority_proof=proof(token)):
        await ready(node, "proved", tools=2)
        assert "result" in await call(node, "proved__write")
    async with bare_subserver(node, "unproved", tools=WRITES, authority=f"dns:{EDGE}") as leaf:
        await ready(node, "unproved", tools=1)
        told = await leaf.hear("notifications/mcpax/tools_refused")
        assert "authority_unverified" in json.dumps(told["params"])
        assert (await call(node, "unproved__write"))["error"]["code"] == -32601


def _wrong(node: RunningNode) -> dict[str, tuple[str, str]]:
    now = int(time.time())
    good = mint(JWK, claims(node), typ="JWT")
    return {
        "alg none": (unsigned(claims(node)), "algorithm"),
        "alg None, signed": (mint(JWK, claims(node), typ="JWT", alg="None"), "algorithm"),
        "HS256 with the public key": (confused(JWK, claims(node), JWK.pem()), "algorithm"),
        "PS256": (mint(JWK, claims(node), typ="JWT", alg="PS256"), "algorithm"),
        "another algorithm than the key's": (mint(JWK, claims(node), typ="JWT", alg="ES256"), "key_unfit"),
        "unknown kid": (mint(STRANGER, claims(node), typ="JWT"), "key_unknown"),
        "a stranger's key under a known kid": (mint(STRANGER, claims(node), typ="JWT", kid="first"), "signature"),
        "no kid where two keys fit not": (mint(STRANGER, claims(node), typ="JWT", kid=None), "signature"),
        "a key that speaks for another": (mint(key("EdDSA", "others"), claims(node), typ="JWT"), "key_of_another"),
        "a key that only approves": (mint(key("EdDSA", "approver"), claims(node), typ="JWT"), "key_of_another"),
        "a key of its own": (mint(STRANGER, claims(node), typ="JWT", kid=None, jwk=STRANGER.jwk()), "signature"),
        "tampered": (tampered(good, sub=f"dns:{EDGE}", jti="other"), "signature"),
        "wrong sub": (mint(JWK, claims(node, sub="dns:other.example.com"), typ="JWT"), "subject"),
        "wildcard sub": (mint(JWK, claims(node, sub="dns:*.example.com"), typ="JWT"), "subject"),
        "parent of sub": (mint(JWK, claims(node, sub="dns:example.com"), typ="JWT"), "subject"),
        "no sub": (mint(JWK, claims(node, sub=None), typ="JWT"), "subject"),
        "wrong aud": (mint(JWK, claims(node, aud="https://hub.example.com/ax"), typ="JWT"), "audience"),
        "aud of another door": (mint(JWK, claims(node, aud=f"{node.url}/mcp"), typ="JWT"), "audience"),
        "no aud": (mint(JWK, claims(node, aud=None), typ="JWT"), "audience"),
        "expired": (mint(JWK, claims(node, iat=now - 120, exp=now - 1), typ="JWT"), "expired"),
        "no exp": (mint(JWK, claims(node, exp=None), typ="JWT"), "claims"),
        "no iat": (mint(JWK, claims(node, iat=None), typ="JWT"), "claims"),
        "iat in the future": (mint(JWK, claims(node, iat=now + 60, exp=now + 120), typ="JWT"), "not_yet"),
        "nbf in the future": (mint(JWK, claims(node, nbf=now + 60), typ="JWT"), "not_yet"),
        "good for too long": (mint(JWK, claims(node, exp=now + 601), typ="JWT"), "lifetime"),
        "no jti": (mint(JWK, claims(node, jti=None), typ="JWT"), "claims"),
        "a jti that is no text": (mint(JWK, claims(node, jti=7), typ="JWT"), "claims"),
        "an access token": (mint(JWK, claims(node), typ="at+jwt"), "type"),
        "a confirmation": (mint(JWK, claims(node), typ="mcpax-confirm+jwt"), "type"),
        "an extension": (mint(JWK, claims(node), typ="JWT", crit=["exp"]), "malformed"),
        "no token": ("x", "malformed"),
        "five parts": (f"{good}.a.b", "malformed"),
    }


@pytest.mark.req("AX-4.2-8")
async def test_a_proof_that_is_wrong_in_any_way_is_refused_with_its_reason(node: RunningNode) -> None:
    expected = {what: (32114, reason) for what, (_, reason) in _wrong(node).items()}
    found = {what: await refusal(node, proof(token)) for what, (token, _) in _wrong(node).items()}
    assert found == expected


@pytest.mark.req("AX-4.2-8")
async def test_a_proof_is_used_once_also_by_another_segment_and_after_a_restart(tmp_path: Path, keyset: KeySet) -> None:
    extra = anchors(tmp_path, keyset.url) + '[node]\nlisten = "127.0.0.1:0"\noperator_listen = "127.0.0.1:0"\n'
    with running_node(tmp_path, {}, extra) as node:
        aggregator = (await asyncio.to_thread(node.admin, "/admin/status"))["node"]["aggregator_id"]
        token = mint(JWK, claims(node, aud=aggregator, exp=int(time.time()) + 300), typ="JWT")
        async with bare_subserver(node, "once", authority=f"dns:{EDGE}", authority_proof=proof(token)):
            pass
        assert await refusal(node, proof(token)) == (32114, "replayed")
    with running_node(tmp_path, {}, extra) as node:
        assert await refusal(node, proof(token)) == (32114, "replayed")


async def test_a_key_that_was_renewed_is_found_and_a_key_set_that_is_away_proves_nothing(tmp_path: Path) -> None:
    second = key("EdDSA", "second")
    with KeySet().serving() as own:
        own.status = 503
        with running_node(tmp_path, {}, anchors(tmp_path, own.url)) as node:
            assert await refusal(node, proof(mint(SET, claims(node), typ="JWT"))) == (32131, "anchor_keys")
            own.status = 200
            own.keys = [second]
            token = mint(second, claims(node), typ="JWT")

            async def joined() -> bool:
                leaf = BareSubserver(
                    await connect(node), "renewed", authority=f"dns:{EDGE}", authority_proof=proof(token)
                )
                try:
                    await leaf.register()
                except Refused as refused:
                    assert refused.error["code"] == 32131  # until the next try of the key set
                    return False
                finally:
                    await leaf.stop()
                return True

            async with asyncio.timeout(20):
                while not await joined():
                    pass
            assert await refusal(node, proof(mint(SET, claims(node), typ="JWT"))) == (32114, "key_unknown")


async def test_an_anchor_is_trusted_exactly_while_it_is_configured(tmp_path: Path) -> None:
    anchor = f'[[anchor]]\nname = "late"\nkey = \'{json.dumps(JWK.jwk())}\'\nspeaks_for = ["{EDGE}"]\n'
    with running_node(tmp_path, {}) as node:
        without = node.config.read_text()
        assert await refusal(node, proof(mint(JWK, claims(node), typ="JWT"))) == (32114, "key_unknown")
        node.config.write_text(without + anchor)

        async def joins() -> bool:
            sent = proof(mint(JWK, claims(node), typ="JWT"))
            leaf = BareSubserver(await connect(node), "late", authority=f"dns:{EDGE}", authority_proof=sent)
            try:
                await leaf.register()
            except Refused as refused:
                assert refused.error["data"]["reason"] == "key_unknown"
                return False
            finally:
                await leaf.stop()
            return True

        async with asyncio.timeout(20):
            while not await joins():
                pass
        node.config.write_text(without + f'[[anchor]]\nname = "lost"\nkey = "none.pem"\nspeaks_for = ["{EDGE}"]\n')
        trouble = await asyncio.to_thread(
            wait_for, lambda: node.admin("/admin/status")["configuration"]["problem"], 20.0
        )
        assert "none.pem" in trouble
        assert await joins()  # as it was
        node.config.write_text(without)
        async with asyncio.timeout(20):
            while await joins():
                pass


@pytest.mark.req("AX-4.2-10")
async def test_an_operator_may_name_who_on_this_machine_speaks_for_an_authority(tmp_path: Path) -> None:
    """A child on its stdio is the node's own user; one on loopback is whom [[access]] names."""
    command = json.dumps([sys.executable, str(Path(__file__).parents[1] / "leaf.py"), "kid", f"dns:{EDGE}"])
    extra = f'[[access]]\nwho = ["local"]\nscope = "write"\nauthority = "dns:{EDGE}"\n'
    extra += f'[[ax.children]]\nsegment = "kid"\ncommand = {command}\n'
    with running_node(tmp_path, {}, extra) as node:
        kid = (await ready(node, "kid", tools=1))["registration"]
        assert (kid["authority"], kid["verified"]) == (f"dns:{EDGE}", True)
        async with bare_subserver(node, "named", tools=WRITES, authority=f"dns:{EDGE}"):
            link = await ready(node, "named", tools=2)
            assert link["registration"]["verified"] is True
        async with bare_subserver(node, "another", tools=WRITES, authority=f"dns:{OTHER}"):
            link = await ready(node, "another", tools=1)
            assert link["registration"]["verified"] is False
        assert (await refusal(node, {"type": "uid", "token": "0"}))[0] == -32602
        for sent in ({"type": "x509", "token": "x"}, {"type": "JWT", "token": "x"}, {"token": "x"}, "x", 7, []):
            assert (await refusal(node, sent))[0] == -32602


@pytest.mark.req("AX-4.2-11")
async def test_unproved_claims_pass_where_little_can_be_done_with_them(tmp_path: Path, node: RunningNode) -> None:
    async with bare_subserver(node, "readers", tools=[tool("read")], authority=f"dns:{EDGE}"):
        link = await ready(node, "readers", tools=1)
        assert link["registration"]["verified"] is False
    extra = '[ax]\nrequire_proof = "never"\n[[access]]\nwho = ["local"]\nscope = "write"\n'
    with running_node(tmp_path / "never", {}, extra) as lax:
        async with bare_subserver(lax, "writers", tools=WRITES, authority=f"dns:{EDGE}"):
            await ready(lax, "writers", tools=2)
            assert "writers.write" in await listed(lax)
        assert "require_proof" in (tmp_path / "never" / "stderr.txt").read_text()
        assert "require_proof" in (await asyncio.to_thread(lax.cli, "status")).stdout
    extra = '[ax]\nrequire_proof = "always"\n'
    with running_node(tmp_path / "always", {}, extra) as strict:
        leaf = BareSubserver(await connect(strict), "writers", authority=f"dns:{EDGE}")
        with pytest.raises(Refused) as refused:
            await leaf.register()
        await leaf.stop()
        assert refused.value.error["code"] == 32114


async def test_a_leaf_of_the_library_signs_each_registration_with_its_key(tmp_path: Path) -> None:
    made = RunningNode.cli(
        _Stopped(tmp_path / "leaf"),  # type: ignore[arg-type]
        *("access", "anchor", "--key", str(tmp_path / "leaf.key"), "--speaks-for", EDGE),
    )
    assert made.returncode == 0, made.stderr
    assert made.stdout.startswith('[[anchor]]\nname = "leaf"\nkey = "ed25519:')
    extra = f'{made.stdout}[[access]]\nwho = ["local"]\nscope = "write"\n[degraded]\nenabled = false\n'
    with running_node(tmp_path / "root", {}, extra) as root:
        for _ in range(2):
            leaf = Subserver(
                "library",
                parents=[f"ws://127.0.0.1:{root.port}/ax"],
                authority=EDGE,
                authority_key=tmp_path / "leaf.key",
                state=tmp_path / "state",
            )
            leaf.tool(name="write", mutable=True)(lambda: 7)
            serving = asyncio.create_task(leaf.serve())
            link = await ready(root, "library", tools=1)
            assert link["registration"]["verified"] is True
            leaf.stop()
            await serving
            await asyncio.to_thread(
                wait_for, lambda: all(one["segment"] != "library" for one in root.admin("/admin/links")["links"])
            )


async def test_a_node_below_signs_each_registration_with_its_own_key(tmp_path: Path) -> None:
    """As docs/tree.md says: interlock access anchor below, its lines pasted above."""
    child = tmp_path / "child"
    made = RunningNode.cli(
        _Stopped(child),  # type: ignore[arg-type]
        "access",
        "anchor",
        "--speaks-for",
        EDGE,
        "--name",
        "edge",
    )
    assert made.returncode == 0, made.stderr
    assert (child / "data" / "node.key").stat().st_mode & 0o777 == 0o600
    above = f'{made.stdout}\n[[access]]\nwho = ["local"]\nscope = "write"\n'
    with running_node(tmp_path / "root", {}, above) as root:
        parent = f'[[ax.parents]]\nurl = "ws://127.0.0.1:{root.port}/ax"\nsegment = "edge"\nauthority = "dns:{EDGE}"\n'
        for _ in range(2):  # the second time with a new proof
            # The child leaves in order, so the segment is free, and its own by the first proof.
            with running_node(child, {}, parent) as below:
                link = await ready(root, "edge")
                assert link["registration"]["verified"] is True
                assert await asyncio.to_thread(
                    wait_for, lambda: below.admin("/admin/status")["parents"][0]["state"] == "registered"
                )


class _Stopped:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.data, self.config = folder / "data", folder / "none.toml"
        self.config.write_text("")
