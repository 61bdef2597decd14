"""A policy engine and an approval service: two outsiders that sign confirmations, as programs of their own.

    python approver.py engine --http PORT --public FILE    its public key is a PEM file
    python approver.py desk --http PORT                    its keys are at /jwks

Prints its URL. The engine signs what its policy allows: POST /decide with a held call gives a proof with its nonce, or
403. At the desk somebody decides: POST /requests with a held call opens a request, POST /requests/N/grant gives a token
for it. POST /control changes claims (`claims`; null leaves one out), renews the key (`renew`) or makes /jwks fail
(`failing`). Signed with PyJWT; no code of the product.
"""

import argparse
import json
import sys
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

LARGEST = 100  # what the engine's policy lets through


class Signer:
    def __init__(self, role: str) -> None:
        self.role = role
        self.changes: dict[str, Any] = {}
        self.failing = False
        self.requests: list[Any] = []
        self.renew()

    def renew(self) -> None:
        self.alg = "ES256" if self.role == "engine" else "RS256"
        self.kid = str(uuid.uuid4())
        self.key: Any = (
            ec.generate_private_key(ec.SECP256R1())
            if self.role == "engine"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )

    @property
    def public_pem(self) -> bytes:
        return self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    @property
    def jwks(self) -> dict[str, Any]:
        public = json.loads(jwt.get_algorithm_by_name(self.alg).to_jwk(self.key.public_key()))
        return {"keys": [{**public, "kid": self.kid, "use": "sig", "alg": self.alg}]}

    def proof(self, held: Any, **more: Any) -> dict[str, str]:
        now = int(time.time())
        claims = {
            "iss": f"https://{self.role}.example",
            "aud": held["aggregator_id"],
            "jti": str(uuid.uuid4()),
            "iat": now,
            "exp": now + 60,
            "confirmation_id": held["confirmation_id"],
            "call_digest": held["call_digest"],
        }
        said = {name: value for name, value in (claims | more | self.changes).items() if value is not None}
        # A key that an anchor has from a PEM file bears its thumbprint there, so no name is better than another one.
        headers = {"typ": "mcpax-confirm+jwt"} | ({"kid": self.kid} if self.role == "desk" else {})
        kind = "policy_nonce" if self.role == "engine" else "approval_token"
        return {"type": kind, "token": jwt.encode(said, self.key, self.alg, headers)}

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        match (self.role, path.strip("/").split("/")):
            case (_, ["jwks"]):
                return (503, {}) if self.failing else (200, self.jwks)
            case (_, ["control"]):
                self.changes = body.get("claims", {})
                self.failing = body.get("failing", False)
                if body.get("renew"):
                    self.renew()
                return 200, {}
            case ("engine", ["decide"]):
                amount = body["arguments"].get("amount", 0)
                if not isinstance(amount, int) or amount > LARGEST:
                    return 403, {"why": f"more than {LARGEST}"}
                return 200, self.proof(body, nonce=body["nonce"])
            case ("desk", ["requests"]):
                self.requests.append(body)
                return 201, {"number": len(self.requests) - 1}
            case ("desk", ["requests", number, "grant"]):
                return 200, self.proof(self.requests[int(number)])
            case _:
                return 404, {}


def handler(signer: Signer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._send(*signer.answer(self.path, {}))

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            self._send(*signer.answer(self.path, json.loads(body or b"{}")))

        def _send(self, status: int, value: Any) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=["engine", "desk"])
    parser.add_argument("--http", type=int, default=0)
    parser.add_argument("--public", type=Path)
    given = parser.parse_args()
    signer = Signer(given.role)
    if given.public is not None:
        given.public.write_bytes(signer.public_pem)
    server = ThreadingHTTPServer(("127.0.0.1", given.http), handler(signer))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.exit(0)


if __name__ == "__main__":
    main()
