"""A node with a gate in front of an actuator, people who can sign, and what a held call looks like.

Nothing here is code of the product. `proof` signs as an operator's tool would, from what a client was told; a proof
reaches the node at the operator door, or by mcpax/confirm from whoever carries it.
"""

import contextlib
import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.gate.actuator_server import command
from tests.servers.minting import SigningKey, key, mint
from tests.support.node_process import RunningNode, Wire, running_node, wait_for

ADA, BOB, MALLORY = key("EdDSA", "ada"), key("ES256", "bob"), key("EdDSA", "mallory")
GATED = '[gate]\nmode = "gated"\n'
ERAS = ("legacy", "modern")
PAGES = {"elicitation": {"url": {}}}
MARK = "x-mcpax-confirmation"


def anchor(name: str, signer: SigningKey, *approves: str) -> str:
    return f"[[anchor]]\nname = {json.dumps(name)}\nkey = '{json.dumps(signer.jwk())}'\napproves = {list(approves)}\n"


ANCHORED = GATED + anchor("ada", ADA, "*") + anchor("bob", BOB, "office.*")


class ActuatorLog:
    """What the actuator did."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, tool: str | None = None) -> list[Any]:
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return [entry for line in lines if tool in (None, (entry := json.loads(line))["tool"])]

    def __len__(self) -> int:
        return len(self.read())


def actuator_table(diary: ActuatorLog, era: str = "modern", **keys: Any) -> dict[str, Any]:
    words = command(diary.path, "--era", era)
    return {"command": words[0], "args": words[1:], **keys}


@contextlib.contextmanager
def gated_node(
    folder: Path, diary: ActuatorLog, extra: str = ANCHORED, era: str = "modern", **keys: Any
) -> Iterator[RunningNode]:
    """`keys` are further keys of the server."""
    with running_node(folder, {"plant": actuator_table(diary, era, **keys)}, extra) as node:
        node.wait_link("plant", {"state": "ready"})
        yield node


class Client:
    """One caller, in one era."""

    def __init__(
        self,
        node: RunningNode,
        era: str = "modern",
        token: str | None = None,
        capabilities: Mapping[str, Any] | None = None,
        path: str = "/mcp",
    ) -> None:
        self.era, self.capabilities = era, capabilities or {}
        self.wire = Wire(node, path, token)
        if era == "legacy":
            self.wire.initialize(self.capabilities)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        if self.era == "legacy":
            return self.wire.legacy(method, params).message
        said = {name: value for name, value in params.items() if name != "_meta"}
        return self.wire.modern(method, said, capabilities=self.capabilities, meta=params.get("_meta")).message

    def call(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The result."""
        answer = self.ask("tools/call", {"name": name, "arguments": dict(arguments or {}), **more})
        assert "result" in answer, answer
        return answer["result"]

    def refused(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The error."""
        answer = self.ask("tools/call", {"name": name, "arguments": dict(arguments or {}), **more})
        assert "error" in answer, answer
        return answer["error"]

    def held(self, name: str, arguments: Mapping[str, Any] | None = None, **more: Any) -> Any:
        """The demand of a call that is held."""
        result = self.call(name, arguments, **more)
        assert result["isError"] is True, result
        demand = result["_meta"][MARK]
        assert demand["status"] == "confirmation_required", demand
        return demand

    def confirm(self, demand: Mapping[str, Any], proof: Any, **more: Any) -> Any:
        return self.ask("mcpax/confirm", {"confirmation_id": demand["confirmation_id"], "proof": proof, **more})


def proof(demand: Mapping[str, Any], signer: SigningKey = ADA, **changes: Any) -> str:
    """What an operator's tool makes of a demand. A change to None leaves the claim out."""
    now = time.time()
    claims = {
        "iss": signer.kid,
        "aud": demand["aggregator_id"],
        "jti": str(uuid.uuid4()),
        "iat": now,
        "exp": now + 120,
        "confirmation_id": demand["confirmation_id"],
        "call_digest": demand["call_digest"],
    }
    said = {name: value for name, value in (claims | changes).items() if value is not None}
    return mint(signer, said, typ="mcpax-confirm+jwt")


def compute_digest(demand: Mapping[str, Any]) -> str:
    """The digest of a held call as a signer computes it, from nothing but what it was shown."""
    signed = {"v": 1, **demand, **demand.get("held_as", {})}
    names = ("v", "aggregator_id", "tool", "arguments", "route", "caller", "tool_digest")
    text = json.dumps({name: signed[name] for name in names}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def approve(node: RunningNode, demand: Mapping[str, Any], signer: SigningKey = ADA) -> None:
    """Out of band: at the operator door, with a proof."""
    decided = node.admin(
        f"/approvals/{demand['confirmation_id']}", "POST", {"decision": "approve", "proof": proof(demand, signer)}
    )
    assert decided.get("status") == "approved", decided


def classify(node: RunningNode, demand: Mapping[str, Any], tool_class: str, signed: str | None = None) -> Any:
    """An operator says what a tool is. `signed`: what the proof says instead."""
    said = {
        "v": 1,
        "kind": "definition",
        "tool": demand["tool"],
        "digest": demand["call_digest"],
        "answer": signed or tool_class,
    }
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    token = proof(demand, call_digest=hashlib.sha256(text.encode()).hexdigest())
    body = {"decision": "approve", "class": tool_class, "proof": token}
    return node.admin(f"/approvals/{demand['confirmation_id']}", "POST", body)


def signed_enrolment(node: RunningNode, id: str, signer: SigningKey = ADA) -> str:
    """A proof that one who is to be an approver may be one."""
    shown = node.admin(f"/approvals/{id}")
    said = {"v": 1, "kind": shown["kind"], "tool": shown["tool"], "digest": shown["digest"], "answer": None}
    text = json.dumps(said, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    asked = {"aggregator_id": shown["aggregator_id"], "confirmation_id": shown["id"]}
    return proof(asked | {"call_digest": hashlib.sha256(text.encode()).hexdigest()}, signer)


def sign_configuration(node: RunningNode, signer: SigningKey = ADA) -> None:
    """Sign what the written configuration loosens, once the node has asked for that."""
    (asked,) = wait_for(lambda: node.admin("/approvals?kind=configuration")["approvals"])
    body = {"decision": "approve", "proof": signed_enrolment(node, asked["id"], signer)}
    decided = node.admin(f"/approvals/{asked['id']}", "POST", body)
    assert decided.get("status") == "done", decided


def enrol_waiting(node: RunningNode, *names: str, signer: SigningKey = ADA) -> None:
    """Ada vouches for those whom the configuration now names besides her."""

    def waiting() -> dict[str, str]:
        found = node.admin("/approvals?kind=enrolment")["approvals"]
        return {one["tool"].partition(".")[2]: one["id"] for one in found}

    wait_for(lambda: set(names) <= waiting().keys())
    for name in names:
        id = waiting()[name]
        body = {"decision": "approve", "proof": signed_enrolment(node, id, signer)}
        decided = node.admin(f"/approvals/{id}", "POST", body)
        assert decided.get("status") == "done", decided


def deny(node: RunningNode, demand: Mapping[str, Any], reason: str | None = None) -> None:
    decided = node.admin(f"/approvals/{demand['confirmation_id']}", "POST", {"decision": "deny", "reason": reason})
    assert decided.get("status") == "denied", decided


def token(node: RunningNode, name: str) -> str:
    made = node.cli("access", "token", "--for", "client", "--name", name, "--json")
    return str(json.loads(made.stdout)["token"])
