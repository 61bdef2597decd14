"""An authorization server with everything a resource server looks at, and a way to make it behave badly.

    python authserver.py --http PORT

Prints its URL, which is its issuer. /token gives access tokens by client credentials to anybody, for the resource and
scope they ask for; /introspect answers for opaque ones. Under /flows there is a second issuer, for the flows of
clients and people (flows.py). POST /control makes tokens and trouble, see `Control`.
"""

import argparse
import base64
import json
import secrets
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote_plus, urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.servers.flows import Flows
from tests.servers.minting import SigningKey, confused, key, mint, tampered, unsigned

FLOWS = "/flows"
INTROSPECTION_CLIENT = ("node", "s3cr%t /:é")
PATIENCE_SECONDS = 20.0


class Authority:
    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.reset()

    def reset(self) -> None:
        """As if it had just been started."""
        self.signer: SigningKey = key("EdDSA", "first")
        self.published: Any = [self.signer.jwk(), key("RS256", "rsa").jwk(), key("ES256", "ec").jwk()]
        self.metadata_changes: dict[str, Any] = {}
        self.metadata_at = {"/.well-known/oauth-authorization-server"}
        self.opaque: dict[str, Any] = {}
        self.failing: dict[str, int] = {}  # path -> status
        self.counts: Counter[str] = Counter()
        self.granted: list[str] = []  # scopes asked for at /token
        self.flows = Flows(self.issuer + FLOWS)
        self.documents: dict[str, Any] = {}  # path -> what stands there; a number: so many bytes; a URL: go there
        self.gate = threading.Event()  # answers wait until it is set
        self.gate.set()

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {"iss": self.issuer, "sub": "alice", "client_id": "app", "iat": now, "exp": now + 300, "jti": "x"}
        return {name: value for name, value in (usual | changes).items() if value is not None}

    @property
    def metadata(self) -> dict[str, Any]:
        made = {
            "issuer": self.issuer,
            "token_endpoint": f"{self.issuer}/token",
            "authorization_endpoint": f"{self.issuer}/authorize",
            "jwks_uri": f"{self.issuer}/jwks",
            "grant_types_supported": ["client_credentials"],
            "response_types_supported": ["code"],
            "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
        }
        return {name: value for name, value in (made | self.metadata_changes).items() if value is not None}

    @property
    def flows_metadata(self) -> dict[str, Any]:
        flows = self.flows
        made = {
            "issuer": flows.issuer,
            "authorization_endpoint": f"{flows.issuer}/authorize",
            "token_endpoint": f"{flows.issuer}/token",
            "registration_endpoint": f"{flows.issuer}/register",
            "response_types_supported": ["code"],
            "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "private_key_jwt"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }
        return {name: value for name, value in (made | self.metadata_changes).items() if value is not None}

    def token(self, form: dict[str, str], client_id: str) -> dict[str, Any]:
        scope = form.get("scope", "")
        self.granted.append(scope)
        claims = self.claims(sub=client_id, client_id=client_id, aud=form.get("resource"), scope=scope)
        return {"access_token": mint(self.signer, claims), "token_type": "Bearer", "expires_in": 300, "scope": scope}

    def introspect(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        scheme, _, pair = authorization.partition(" ")
        user, _, password = base64.b64decode(pair).decode().partition(":")
        if scheme != "Basic" or (unquote_plus(user), unquote_plus(password)) != INTROSPECTION_CLIENT:
            return 401, {"error": "invalid_client"}
        return 200, self.opaque.get(form.get("token", ""), {"active": False})


class Control:
    """What a test may ask for: {"do": name, ...arguments}."""

    def __init__(self, authority: Authority) -> None:
        self._authority = authority

    def reset(self) -> None:
        self._authority.gate.set()
        self._authority.reset()

    def mint(
        self, claims: dict[str, Any], header: dict[str, Any] | None = None, signer: list[str] | None = None
    ) -> str:
        authority = self._authority
        return mint(key(*signer) if signer else authority.signer, authority.claims(**claims), **(header or {}))

    def unsigned(self, claims: dict[str, Any], alg: str = "none") -> str:
        return unsigned(self._authority.claims(**claims), alg)

    def confused(self, claims: dict[str, Any]) -> str:
        rsa = key("RS256", "rsa")
        return confused(rsa, self._authority.claims(**claims), rsa.pem())

    def tampered(self, token: str, claims: dict[str, Any]) -> str:
        return tampered(token, **claims)

    def opaque(self, claims: dict[str, Any]) -> str:
        token = secrets.token_urlsafe(32)
        self._authority.opaque[token] = {"active": True, "token_type": "Bearer"} | self._authority.claims(**claims)
        return token

    def say(self, token: str, answer: Any) -> None:
        """What is answered about an opaque token from now on, whatever it is."""
        self._authority.opaque[token] = answer

    def revoke(self, token: str) -> None:
        self._authority.opaque.pop(token, None)

    def rotate(self, kid: str) -> None:
        """A new key for what is minted from now on; only it is published."""
        self._authority.signer = key("EdDSA", kid)
        self._authority.published = [self._authority.signer.jwk()]

    def publish(self, keys: Any) -> None:
        self._authority.published = keys

    def jwk(self, alg: str, kid: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        return key(alg, kid).jwk(**(changes or {}))

    def metadata(self, at: list[str] | None = None, changes: dict[str, Any] | None = None) -> None:
        if at is not None:
            self._authority.metadata_at = set(at)
        self._authority.metadata_changes = changes or {}

    def flows(self, **changes: Any) -> None:
        for name, value in changes.items():
            setattr(self._authority.flows, name, value)

    def client(self, client_id: str, **known: Any) -> None:
        self._authority.flows.clients[client_id] = known

    def seen(self, of: str) -> list[Any]:
        """What was asked at `authorize`, `register` or `token`."""
        return self._authority.flows.seen[of]

    def judge(self, token: str) -> dict[str, Any] | None:
        return self._authority.flows.judge(token)

    def forget(self, of: str) -> None:
        """All `tokens`, `refreshes` or `clients` are unknown from now on."""
        getattr(self._authority.flows, of).clear()

    def document(self, path: str, stands: Any) -> None:
        self._authority.documents[path] = stands

    def fail(self, path: str, status: int | None) -> None:
        if status is None:
            self._authority.failing.pop(path, None)
        else:
            self._authority.failing[path] = status

    def hold(self) -> None:
        self._authority.gate.clear()

    def release(self) -> None:
        self._authority.gate.set()

    def counts(self) -> dict[str, int]:
        return dict(self._authority.counts)

    def granted(self) -> list[str]:
        return self._authority.granted


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    authority: Authority

    def do_GET(self) -> None:
        authority, path = self.authority, self.path
        if path.startswith(FLOWS + "/authorize?"):
            asked = dict(parse_qsl(urlsplit(path).query))
            self._send_to(authority.flows.authorize(asked, self.headers.get("x-user", "somebody")))
            return
        if self._is_in_trouble(path):
            return
        if path in authority.documents:
            self._stands(authority.documents[path])
        elif path == f"/.well-known/oauth-authorization-server{FLOWS}":
            self._answer(200, authority.flows_metadata)
        elif path in authority.metadata_at:
            self._answer(200, authority.metadata)
        elif path == "/jwks":
            self._answer(200, {"keys": authority.published})
        else:
            self._answer(404, {"error": "not_found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/control":
            asked = json.loads(body)
            self._answer(200, getattr(Control(self.authority), asked.pop("do"))(**asked))
            return
        if self._is_in_trouble(self.path):
            return
        if self.path == f"{FLOWS}/register":
            self._answer(*self.authority.flows.register(body))
            return
        form, authorization = dict(parse_qsl(body.decode())), self.headers.get("authorization", "")
        if self.path == f"{FLOWS}/token":
            self._answer(*self.authority.flows.token(form, authorization))
        elif self.path == "/introspect":
            self._answer(*self.authority.introspect(form, authorization))
        elif self.path == "/token":
            pair = base64.b64decode(authorization.partition(" ")[2]).decode()
            self._answer(200, self.authority.token(form, unquote_plus(pair.partition(":")[0])))
        else:
            self._answer(404, {"error": "not_found"})

    def _is_in_trouble(self, path: str) -> bool:
        self.authority.counts[path] += 1
        self.authority.gate.wait(PATIENCE_SECONDS)
        status = self.authority.failing.get(path)
        if status is not None:
            self._answer(status, {"error": "trouble"})
        return status is not None

    def _stands(self, what: Any) -> None:
        if isinstance(what, int):
            self._answer(200, "x" * what)
        elif isinstance(what, str) and what.startswith("http"):
            self._send_to(what)
        else:
            self._answer(200, what)

    def _send_to(self, url: str) -> None:
        self.send_response(302)
        self.send_header("location", url)
        self.send_header("content-length", "0")
        self.end_headers()

    def _answer(self, status: int, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--http", type=int, default=0, metavar="PORT")
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().http), Handler)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    Handler.authority = Authority(url)
    print(url, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
