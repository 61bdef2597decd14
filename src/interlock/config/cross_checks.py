"""Checks of keys that do not fit together, and of tool names that the configuration itself shows cannot be listed.

These checks run after all layers are read, on the values that were readable; a key whose value was wrong is not judged
again. Each check reports at the place where the person wrote the key that matters (`Settings.written`). Combinations
that leave the node open to others or cannot work are problems, and stop the start; those that are only unwise are
warnings.

A file names tools where it classifies them (`tools` of a server) and where a [[tool]] entry matches exactly one. All
other tools are only in a server's own list, which `interlock check --upstream` asks for.
"""

from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from interlock.aql.protocol.families import PROFILES
from interlock.ax.protocol.names import (
    QUALIFIED_MAX,
    is_qualified,
    qualify,
    resolve_locals,
    withhold_colliding_aliases,
)
from interlock.config.addresses import collide
from interlock.config.plan import AuthPlan, NodePlan
from interlock.config.problems import At, Findings, Problem, quoted_word
from interlock.config.reader import Settings
from interlock.crypto.webauthn import find_relying_party
from interlock.net.protocol.address_scope import is_loopback


def check_together(settings: Settings, workspace: Path, data: Path, findings: Findings) -> None:
    """Check the settings that must fit together, and report each mistake at the key that a person has to change."""
    node: dict[str, Any] = settings.tables.get("node", {})
    plan = NodePlan(**node)
    auth = AuthPlan(**settings.tables.get("auth", {}))
    _tls_pair(settings)
    _client_certificates(settings)
    _issuers_apart(settings, auth)
    _root_or_child(settings)
    # Used proofs and audit records refer to an anchor by its name.
    _report_repeated(settings, "anchor", [anchor.name for anchor in settings.anchors], "name", "have the name")
    # AQL-C.map-3: of two tools with the same operation name, neither would be listed.
    operations = [None if rule.aql is None else rule.aql.name for rule in settings.tools]
    _report_repeated(settings, "tool", operations, "aql", "give the operation name")
    _proof_asked_for(settings)
    _channels_can_be_reached(settings)
    _aql_profile_is_known(settings)
    _shared_store_can_be_reached(settings)
    if settings.wrong & {("node", "listen"), ("node", "operator_listen"), ("auth", "anonymous")}:
        return  # a default in their place would be judged, not what the person means
    _require_two_endpoints(settings, plan)
    _refuse_anonymous_from_outside(settings, plan, auth.anonymous)
    _refuse_lax_aql_from_outside(settings, plan)
    _warn_of_plain_http(settings, plan)
    _warn_of_proxied_loopback(settings, plan, auth.anonymous)
    _require_public_url_for_issuers(settings, plan, auth)
    _warn_of_unusable_passkeys(settings, plan)
    _data_outside_workspace(settings, workspace, data, findings)


def _tls_pair(settings: Settings) -> None:
    """Report a certificate without its key, or a key without its certificate."""
    for key, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        at = settings.written.get(("node", key))
        if at is not None and ("node", other) not in settings.written:
            at.wrong(f"'{key}' in [node] needs '{other}'", "give both, or neither")


def _client_certificates(settings: Settings) -> None:
    """Report settings for client certificates that the node never receives.

    Only the program that ends a TLS connection receives them: this node or a trusted proxy.
    """
    crl, ca = settings.written.get(("node", "crl")), settings.written.get(("node", "client_ca"))
    if crl is not None and ca is None:
        crl.wrong("'crl' in [node] needs 'client_ca'", "give the CA whose certificates it revokes")
    node = settings.tables.get("node", {})
    if ca is not None and node.get("tls_cert") is None and not node.get("trusted_proxies"):
        hint = "give tls_cert and tls_key, or name the proxy that takes certificates in trusted_proxies"
        ca.wrong("'client_ca' in [node] has no effect without TLS", hint)


def _root_or_child(settings: Settings) -> None:
    """Report a root segment on a node that has parents. A parent assigns the segment of its child (MCP-AX 3.1)."""
    at = settings.written.get(("ax", "root_segment"))
    if at is not None and settings.tables.get("ax", {}).get("parents"):
        at.wrong("'root_segment' in [ax] names a root, and [[ax.parents]] makes this node a child", "give one of them")


def _proof_asked_for(settings: Settings) -> None:
    """Warn if subservers may offer tools that change data without proving their identity."""
    at = settings.written.get(("ax", "require_proof"))
    if at is not None and settings.tables.get("ax", {}).get("require_proof") == "never":
        at.warn(
            "require_proof = 'never' lets every subserver offer tools that change things without proof of who it is",
            "leave it out, and name whom you trust in [[anchor]] or [[access]]",
        )


def _report_repeated(settings: Settings, section: str, names: list[str | None], key: str, have: str) -> None:
    """Report entries of a list whose name an earlier entry already has. An entry with the name None is skipped."""
    for index, name in enumerate(names):
        at = settings.written.get((section, str(index)))
        if name is not None and name in names[:index] and at is not None:
            at.inside(key).wrong(f"two entries of [[{section}]] {have} {quoted_word(name)}", "give each its own")


_CHANNEL_KEYS: Final = {
    "command": ("command",),
    "webhook": ("webhook_url", "webhook_secret"),
    "smtp": ("smtp_url", "smtp_from", "smtp_to"),
}


def _channels_can_be_reached(settings: Settings) -> None:
    """Report notification channels for approvals that lack required settings, and settings for channels that are not
    used.
    """
    approvals = settings.tables.get("approvals", {})
    for channel, keys in _CHANNEL_KEYS.items():
        at = settings.written.get(("approvals", "channels"))
        chosen = channel in approvals.get("channels", ())
        for key in keys:
            place = settings.written.get(("approvals", key))
            if chosen and at is not None and place is None:
                at.wrong(f"the channel '{channel}' in [approvals] needs '{key}'", "give it, or leave the channel out")
            elif place is not None and not chosen:
                place.warn(
                    f"'{key}' in [approvals] is not used without the channel '{channel}'",
                    f"add '{channel}' to channels",
                )


def _shared_store_can_be_reached(settings: Settings) -> None:
    """Report a shared store without a URL. Warn of settings that have no effect and of a URL without TLS."""
    store = settings.tables.get("store", {})
    chosen = store.get("backend") == "nats"
    at = settings.written.get(("store", "backend"))
    if chosen and at is not None and not store.get("nats_url") and ("store", "nats_url") not in settings.wrong:
        at.wrong("the backend 'nats' in [store] needs 'nats_url'", 'for instance nats_url = "nats://127.0.0.1:4222"')
    for key in ("nats_url", "nats_secret", "nats_ca_file", "nats_replicas"):
        place = settings.written.get(("store", key))
        if place is not None and not chosen:
            place.warn(f"'{key}' in [store] is not used without the backend 'nats'", 'add backend = "nats"')
    beyond = [
        url
        for url in store.get("nats_url", ())
        if url.startswith("nats://") and not is_loopback(urlsplit(url).hostname or "")
    ]
    at = settings.written.get(("store", "nats_url"))
    if chosen and at is not None and beyond:
        at.warn(
            f"'nats_url' in [store] is beyond this machine without TLS: {', '.join(beyond)}",
            "dial tls://, unless something else keeps others from reading and changing what passes",
        )


def _aql_profile_is_known(settings: Settings) -> None:
    """Report a profile of operation families that is neither built in nor described in the file."""
    aql = settings.tables.get("aql", {})
    profile, families = aql.get("profile", "crude"), aql.get("families", {})
    at = settings.written.get(("aql", "profile"))
    if at is not None and profile not in PROFILES and not families:
        at.wrong(
            f"'profile' in [aql] must be one of {', '.join(PROFILES)}, not {quoted_word(profile)}",
            "or describe it in 'families'",
        )
    if at is not None and profile in PROFILES and families:
        at.wrong(f"{quoted_word(profile)} is a profile that has its families", "give 'families' a name of their own")


def _refuse_lax_aql_from_outside(settings: Settings, plan: NodePlan) -> None:
    """Report that strict mode is off on a node that others can reach.

    This is allowed in development only (AQL-4.6.2-1).
    """
    at = settings.written.get(("aql", "strict_mode"))
    if at is not None and settings.tables.get("aql", {}).get("strict_mode") is False:
        if not is_loopback(plan.listen.host):
            at.wrong("'strict_mode' = false in [aql] is for development, and this node listens beyond this machine")
        else:
            at.warn("'strict_mode' = false in [aql] is for development", "leave it out")


def _issuers_apart(settings: Settings, auth: AuthPlan) -> None:
    """Report authorization servers that cannot be distinguished by their tokens or principals."""
    at = settings.written.get(("auth", "issuers"))
    if at is None:
        return
    for key in ("name", "url"):
        values = [getattr(issuer, key) for issuer in auth.issuers]
        if len(set(values)) < len(values):
            at.wrong(f"two entries of 'issuers' in [auth] have the same '{key}'", "give each its own")
    if sum(issuer.introspection_url is not None for issuer in auth.issuers) > 1:
        at.wrong(
            "only one entry of 'issuers' in [auth] may have 'introspection_url'",
            "a token that is not a JWT does not say whose it is, and must not be shown to the wrong server",
        )


def _require_public_url_for_issuers(settings: Settings, node: NodePlan, auth: AuthPlan) -> None:
    """Report issuers without a public URL.

    Access tokens are issued for a URL, and no client uses the address listened on.
    """
    at = settings.written.get(("auth", "issuers"))
    if at is not None and auth.issuers and node.public_url is None and not is_loopback(node.listen.host):
        at.wrong(
            f"access tokens are issued for a URL, and {node.listen} is none that clients use",
            "set node.public_url to what clients connect to",
        )


def _warn_of_unusable_passkeys(settings: Settings, node: NodePlan) -> None:
    """Warn of passkeys at an operator endpoint where browsers refuse them, such as plain http on another machine."""
    scheme = "http" if node.tls_cert is None else "https"
    if find_relying_party(node.operator_url or f"{scheme}://{node.operator_listen}") is not None:
        return
    for index, anchor in enumerate(settings.anchors):
        at = settings.written.get(("anchor", str(index)))
        if anchor.passkey is not None and at is not None:
            at.inside("passkey").warn(
                f"the passkey of anchor {quoted_word(anchor.name)} approves nothing: "
                "browsers use no passkeys at the operator endpoint",
                "set node.operator_url to a name with https, or to an address of this machine",
            )


def _require_two_endpoints(settings: Settings, node: NodePlan) -> None:
    """Report that the public and the operator endpoint have the same address."""
    at = _first_written(settings, "node.operator_listen", "node.listen")
    if at is not None and collide(node.listen, node.operator_listen):
        at.wrong(
            f"programs ({node.listen}) and people ({node.operator_listen}) need different addresses",
            "give 'operator_listen' another port",
        )


def _refuse_anonymous_from_outside(settings: Settings, node: NodePlan, anonymous: str) -> None:
    """Report a node that would let everyone on the network call every tool."""
    at = _first_written(settings, "auth.anonymous", "node.listen")
    if at is not None and anonymous == "any" and not is_loopback(node.listen.host):
        at.wrong(
            f"anonymous = 'any' would let every program that reaches {node.listen} call every tool",
            "set it to 'never' and make tokens (`interlock access token --for client --name NAME`), or listen on"
            " 127.0.0.1",
        )


def _warn_of_plain_http(settings: Settings, node: NodePlan) -> None:
    """Warn of endpoints that are reachable from other machines without TLS, so that others could read their tokens."""
    endpoints = (("listen", node.listen, node.public_url), ("operator_listen", node.operator_listen, node.operator_url))
    for name, address, url in endpoints:
        at = settings.written.get(("node", name))
        proxied = url is not None and url.lower().startswith("https:")
        if at is not None and node.tls_cert is None and not proxied and not is_loopback(address.host):
            at.warn(
                f"'{name}' in [node] is beyond this machine without TLS: tokens can be read on the network",
                "give tls_cert and tls_key, or put a proxy with TLS in front and set its https URL",
            )


def _warn_of_proxied_loopback(settings: Settings, node: NodePlan, anonymous: str) -> None:
    """Warn of a proxy on this machine, which makes calls from outside look like calls from loopback."""
    at = settings.written.get(("node", "public_url"))
    if at is None or node.public_url is None or anonymous != "loopback" or node.trusted_proxies:
        return
    if is_loopback(node.listen.host) and not is_loopback(urlsplit(node.public_url).hostname or ""):
        at.warn(
            "calls through a proxy on this machine come from loopback and need no token",
            "set auth.anonymous = 'never', or name the proxy in node.trusted_proxies",
        )


def _data_outside_workspace(settings: Settings, workspace: Path, data: Path, findings: Findings) -> None:
    """Warn of a data folder inside the workspace, where servers could read tokens and keys."""
    if not data.is_relative_to(workspace):
        return
    message = "the data folder is inside the workspace, where servers may read tokens and keys"
    hint = "set 'data' or 'workspace' so that neither holds the other"
    at = _first_written(settings, ".data", ".workspace")
    if at is None:
        findings.warning(Problem(key="data", message=message, hint=hint))
    else:
        at.warn(message, hint)


def _first_written(settings: Settings, *names: str) -> At | None:
    """Return where the first of these keys is written, or None if none of them is."""
    places = (settings.written.get((table, key)) for table, _, key in (name.partition(".") for name in names))
    return next((at for at in places if at is not None), None)


def check_names(settings: Settings) -> None:
    """Warn of tool names that collide. The node would withhold all tools with such a name (MCP-AX 3.2, our rule)."""
    root = settings.tables.get("ax", {}).get("root_segment")
    above = (root,) if root else ()
    written: dict[str, At] = {}
    for segment, server in settings.servers.items():
        tools = settings.written["servers", segment].inside("tools")
        resolution = resolve_locals(list(server.classes))
        for tool in resolution.withheld:
            _warn(tools.inside(tool.name), tool.name, tool.reason)
        for original, local in resolution.local_names.items():
            qualified = qualify((*above, segment), local)
            if isinstance(qualified, str):
                written.setdefault(qualified, tools.inside(original))
    for index, rule in enumerate(settings.tools):
        if is_qualified(rule.match) and ("tool", str(index)) in settings.written:
            written.setdefault(rule.match, settings.written["tool", str(index)].inside("match"))
    for tool in withhold_colliding_aliases(written).withheld:
        _warn(written[tool.name], tool.name, tool.reason)


def _warn(at: At, name: str, reason: str) -> None:
    what, _, hint = reason.partition("; ")
    at.warn(f"{quoted_word(name, QUALIFIED_MAX)} will be withheld: {what}", hint or "rename it at the server")
