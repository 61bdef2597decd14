"""What tests of the registry share: requests and decisions, statements of controllers, what clients fetch."""

import contextlib
import functools
import hashlib
import http.client
import json
import sqlite3
import time
import uuid
from pathlib import Path
from typing import Any

from tests.gate.held_calls import ADA, proof, token
from tests.servers.minting import SigningKey, mint
from tests.support.node_process import RunningNode

from interlock.store.audit_chain import ORIGIN, chain

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}


def signed(node: RunningNode, id: str, answer: str | None = None, by: SigningKey = ADA) -> str:
    """The approver signs what the inbox shows."""
    shown = node.admin(f"/approvals/{id}")
    said = {"v": 1, "kind": "request", "tool": shown["tool"], "digest": shown["digest"], "answer": answer}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    asked = {"aggregator_id": shown["aggregator_id"], "confirmation_id": shown["id"]}
    return proof(asked | {"call_digest": hashlib.sha256(text.encode()).hexdigest()}, by)


def decide(node: RunningNode, id: str, reason: str = "looked at", answer: str | None = None) -> Any:
    """An expert's decision, by a copy of the document where it could not be fetched."""
    request = node.admin(f"/approvals/{id}")["params"]
    if any(one["code"] == "skipped_offline" for one in request.get("findings", ())):
        attached = node.cli("names", "attach", request["id"], str(ROOT / "docs" / "names.md"))
        assert attached.returncode == 0, attached.stderr
    body = {
        "decision": "approve",
        "proof": signed(node, id, answer),
        "reason": reason,
        **({"class": answer} if answer else {}),
    }
    return node.admin(f"/approvals/{id}", "POST", body)


def written(folder: Path, name: str, document: Any) -> str:
    path = folder / name
    path.write_text(json.dumps(document))
    return str(path)


def asked(folder: Path, name: str) -> str:
    """The file of a request."""
    return written(
        folder,
        f"{name}.json",
        {
            "change_controller": "Acme",
            "specification_reference": "https://acme.invalid/draft-03",  # no host of this name is ever found
            "authentication_scope": "member-recognition",
            "vendor_prefix": "acme_",
            "argument_schema": SCHEMA,
            "return_schema": SCHEMA,
            "semantics": "section 2",
        },
    )


@functools.cache
def bearer(node: RunningNode) -> str:
    return token(node, "reader")


def fetch(
    node: RunningNode, path: str, body: str | None = None, kind: str = "application/json", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(node.host, node.port, timeout=10)
    try:
        sent = {"authorization": f"Bearer {bearer(node)}", **headers}
        sent = {name: value for name, value in sent.items() if value}
        sent |= {"content-type": kind} if body is not None else {}
        connection.request("GET" if body is None else "POST", path, body, sent)
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def stated(node: RunningNode, signer: SigningKey, action: str, subject: str, body: Any = None, **changes: Any) -> str:
    now = time.time()
    claims = {
        "iss": "Zoo",
        "aud": node.status_at_start["node"]["aggregator_id"],
        "jti": str(uuid.uuid4()),
        "iat": now,
        "exp": now + 300,
        "action": action,
        "subject": subject,
        "body": body or {},
    }
    return mint(signer, claims | changes, typ="names-statement+jwt")


def rewritten_registry(path: Path) -> int:
    """Chains the whole log anew, as one who can write the file and knows how. Returns the first record that changed."""
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        rows = db.execute("SELECT sequence, CAST(data AS BLOB) FROM record ORDER BY sequence").fetchall()
        for (sequence, _), hash in zip(rows, chain(ORIGIN, [data for _, data in rows]), strict=True):
            db.execute("UPDATE record SET hash = ? WHERE sequence = ?", (hash, sequence))
    return next(int(sequence) for sequence, data in rows if b"Evil" in data)
