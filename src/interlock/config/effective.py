"""A Plan as JSON-able values, for people to read: in the shape of the file, with what may be secret masked."""

from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from interlock.config.keys import SECTIONS
from interlock.config.plan import (
    ApprovalsPlan,
    AuthPlan,
    AxPlan,
    ChildPlan,
    DevicesPlan,
    Dial,
    DriversPlan,
    IssuerPlan,
    NodePlan,
    OAuthPlan,
    ParentPlan,
    Plan,
    ServerPlan,
    Spawn,
    StorePlan,
    ToolRule,
)
from interlock.config.sections import Section

MASK: Final = "***"


def effective(plan: Plan) -> dict[str, Any]:
    return {
        "workspace": str(plan.workspace),
        "data": str(plan.data),
        **{section.name: _section(section, plan) for section in SECTIONS.values()},
    }


def _section(section: Section, plan: Plan) -> Any:
    value = getattr(plan, section.field or section.name)
    if section.shape == "segments":
        return {server.segment: _server(server) for server in value}
    show: Callable[[Any], dict[str, Any]] = _SHOWN.get(section.name, _plain)
    return [show(entry) for entry in value] if section.shape == "list" else show(value)


def _node(node: NodePlan) -> dict[str, Any]:
    return _plain(node) | {"listen": str(node.listen), "operator_listen": str(node.operator_listen)}


def _authentication(auth: AuthPlan) -> dict[str, Any]:
    return _plain(auth) | {"issuers": [_issuer(issuer) for issuer in auth.issuers]}


def _tree(ax: AxPlan) -> dict[str, Any]:
    return _plain(ax) | {
        "parents": [_parent(one) for one in ax.parents],
        "children": [_child(one) for one in ax.children],
    }


def _drivers(drivers: DriversPlan) -> dict[str, Any]:
    return {name: each for name, each in _plain(drivers).items() if name != "own"}


def _devices(devices: DevicesPlan) -> dict[str, Any]:
    return {"mode": devices.mode}


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))
    return made


def _parent(parent: ParentPlan) -> dict[str, Any]:
    return _plain(parent) | ({"secret": MASK} if parent.secret is not None else {})


def _child(child: ChildPlan) -> dict[str, Any]:
    return _plain(child) | {"env": dict.fromkeys(child.env, MASK)}


def _issuer(issuer: IssuerPlan) -> dict[str, Any]:
    made = _plain(issuer)
    if issuer.client_secret is not None:
        made["client_secret"] = MASK
    for name in ("jwks_url", "introspection_url"):
        if made[name] is not None:
            made[name] = _masked_url(made[name], ())
    return made


def _approvals(approvals: ApprovalsPlan) -> dict[str, Any]:
    made = _plain(approvals)
    made["command"] = [*approvals.command[:1], *(MASK for _ in approvals.command[1:])]
    if approvals.webhook_url is not None:
        parts = urlsplit(approvals.webhook_url)  # who knows the path of a webhook may often post to it
        made["webhook_url"] = f"{parts.scheme}://{parts.netloc}/{MASK}"
    if approvals.smtp_url is not None:
        parts = urlsplit(approvals.smtp_url)
        login = f"{MASK}@" if parts.username else ""
        made["smtp_url"] = f"{parts.scheme}://{login}{parts.netloc.rpartition('@')[2]}"
    return made | ({"webhook_secret": MASK} if approvals.webhook_secret is not None else {})


def _store(store: StorePlan) -> dict[str, Any]:
    return _plain(store) | ({"nats_secret": MASK} if store.nats_secret is not None else {})


def _server(server: ServerPlan) -> dict[str, Any]:
    reach = server.reach
    made: dict[str, Any] = {}
    match reach:
        case Spawn():
            made["command"] = [masked_text(word, server.secrets) for word in reach.command]
            if reach.package is not None:
                made = {reach.package.registry: reach.package.name, "args": made["command"]}
            made |= {"env": dict.fromkeys(reach.env, MASK), "cwd": None if reach.cwd is None else str(reach.cwd)}
            made["transport"] = "stdio"
            if reach.sandbox is not None:
                files = [masked_text(str(path), server.secrets) for path in reach.sandbox.write]
                made |= {"egress": list(reach.sandbox.egress), "files": files}
        case Dial():
            made["url"] = _masked_url(reach.url, server.secrets)
            made |= {"headers": dict.fromkeys(reach.headers, MASK), "transport": reach.transport}
            made["auth"] = None if reach.auth is None else _auth(reach.auth)
    if server.roots is not None:
        made["roots"] = [masked_text(str(path), server.secrets) for path in server.roots]
    if isinstance(reach, Spawn):
        made["max_processes"] = server.max_processes
    made |= {"share": server.share, "idle_timeout_s": server.idle_timeout_s}
    if server.result_bytes is not None:
        made["result_bytes"] = server.result_bytes
    return made | {"timeout_s": server.timeout_s, "tools": dict(server.classes)}


def _auth(auth: OAuthPlan) -> dict[str, Any]:
    made = _plain(auth)
    return made | ({"client_secret": MASK} if auth.client_secret is not None else {})


def _tool(rule: ToolRule) -> dict[str, Any]:
    made = {name: value for name, value in _plain(rule).items() if value is not None}
    capability: dict[str, Any] = made.pop("capability")
    return made | capability


# What is not shown as the plan has it: secrets are masked, addresses written as in the file.
_SHOWN: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "node": _node,
    "auth": _authentication,
    "ax": _tree,
    "approvals": _approvals,
    "devices": _devices,
    "store": _store,
    "drivers": _drivers,
    "tool": _tool,
}


def masked_text(text: str, secrets: tuple[str, ...]) -> str:
    """`text` without what `${env:NAME}` put into it."""
    for secret in sorted(secrets, key=len, reverse=True):  # a secret may hold another
        text = text.replace(secret, MASK)
    return text


def _masked_url(url: str, secrets: tuple[str, ...]) -> str:
    """Keys are often given as ?key=..., so the query is masked even when it was written out."""
    shown = masked_text(url, secrets)
    parts = urlsplit(shown)
    return urlunsplit(parts._replace(query=MASK)) if parts.query else shown
