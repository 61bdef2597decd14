"""Checks of keys that do not fit together, and of tool names that the configuration itself shows cannot be listed.

These checks run after all layers are read, on the values that were readable; a key whose value was wrong is not judged
again. Each check reports at the place where the person wrote the key that matters (`Settings.written`). Combinations
that leave the node open to others or cannot work are problems, and stop the start; those that are only unwise are
warnings.

A file names tools where it classifies them (`tools` of a server) and where a [[tool]] entry matches exactly one. All
other tools are only in a server's own list, which `interlock check --upstream` asks for.
"""

from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from interlock.aql.protocol.families import PROFILES
from interlock.ax.protocol.names import QUALIFIED_MAX, is_qualified, qualify, resolve_locals, withhold_colliding_aliases
from interlock.config.addresses import collide
from interlock.config.plan import AuthPlan, NodePlan
from interlock.config.problems import At, Findings, Problem, quoted_word
from interlock.config.reader import Settings
from interlock.crypto.webauthn import find_relying_party
from interlock.net.protocol.address_scope import is_loopback


def check_together(settings: Settings, workspace: Path, data: Path, findings: Findings) -> None:
    """Check settings that must fit together, and report each mistake at the key that a person has to change."""
    node = NodePlan(**settings.tables.get("node", {}))
    auth = AuthPlan(**settings.tables.get("auth", {}))
    _check_certificates(settings)
    _check_issuers_apart(settings, auth)
    _check_tree(settings)
    # Used proofs and audit records refer to an anchor by its name.
    _report_repeated(settings, "anchor", [anchor.name for anchor in settings.lists["anchor"]], "name", "have the name")
    # AQL-C.map-3: of two tools with the same operation name, neither would be listed.
    operations = [None if rule.aql is None else rule.aql.name for rule in settings.lists["tool"]]
    _report_repeated(settings, "tool", operations, "aql", "give the operation name")
    _check_channels(settings)
    _check_aql_profile(settings)
    _check_shared_store(settings)
    _check_packages_folder(settings, workspace)
    if settings.wrong & {("node", "listen"), ("node", "operator_listen"), ("auth", "anonymous")}:
        return  # a default in their place would be judged, not what the person means
    _check_openness(settings, node, auth)
    _warn_of_exposure(settings, node, auth.anonymous)
    _warn_of_unusable_passkeys(settings, node)
    _check_data_folder(settings, workspace, data, findings)


def _check_certificates(settings: Settings) -> None:
    """Report a certificate without its key, or a key without its certificate. Also report a CA for client certificates
    on a node that can receive none.
    """
    for key, other in (("tls_cert", "tls_key"), ("tls_key", "tls_cert")):
        if (at := settings.place(f"node.{key}")) and not settings.place(f"node.{other}"):
            at.wrong(f"'{key}' in [node] needs '{other}'", "give both, or neither")
    crl, ca = settings.place("node.crl"), settings.place("node.client_ca")
    if crl and not ca:
        crl.wrong("'crl' in [node] needs 'client_ca'", "give the CA whose certificates it revokes")
    if ca and settings.value("node.tls_cert") is None and not settings.value("node.trusted_proxies"):
        hint = "give tls_cert and tls_key, or name the proxy that takes certificates in trusted_proxies"
        ca.wrong("'client_ca' in [node] has no effect without TLS", hint)


def _check_tree(settings: Settings) -> None:
    """Report a root segment on a node that has parents, which assign the segment (MCP-AX 3.1). Warn if subservers need
    not prove their identity.
    """
    at = settings.place("ax.root_segment")
    if at and settings.value("ax.parents"):
        at.wrong("'root_segment' in [ax] names a root, and [[ax.parents]] makes this node a child", "give one of them")
    at = settings.place("ax.children")
    for child in settings.value("ax.children", ()) if at else ():
        if at and child.segment in settings.servers:
            at.wrong(f"'{child.segment}' is the segment of a server already", "give the child another segment")
    at = settings.place("ax.require_proof")
    if at and settings.value("ax.require_proof") == "never":
        at.warn(
            "require_proof = 'never' lets every subserver offer tools that change things without proof of who it is",
            "leave it out, and name the parties that you trust in [[anchor]] or [[access]]",
        )


def _report_repeated(settings: Settings, section: str, names: list[str | None], key: str, have: str) -> None:
    """Report entries of a list that have the same name as an earlier entry. Entries whose name is None are skipped."""
    for index, name in enumerate(names):
        at = settings.place(f"{section}.{index}")
        if at and name is not None and name in names[:index]:
            at.inside(key).wrong(f"two entries of [[{section}]] {have} {quoted_word(name)}", "give each its own")


_CHANNEL_KEYS: Final = {
    "command": ("command",),
    "webhook": ("webhook_url", "webhook_secret"),
    "smtp": ("smtp_url", "smtp_from", "smtp_to"),
}


def _check_channels(settings: Settings) -> None:
    """Report notification channels that lack a required setting. Warn of settings for channels that are not used."""
    at, chosen = settings.place("approvals.channels"), settings.value("approvals.channels", ())
    for channel, key in ((channel, key) for channel, keys in _CHANNEL_KEYS.items() for key in keys):
        place = settings.place(f"approvals.{key}")
        if at and channel in chosen and not place:
            at.wrong(f"the channel '{channel}' in [approvals] needs '{key}'", "give it, or leave the channel out")
        elif place and channel not in chosen:
            message = f"'{key}' in [approvals] is not used without the channel '{channel}'"
            place.warn(message, f"add '{channel}' to channels")


def _check_shared_store(settings: Settings) -> None:
    """Report a NATS store without a URL. Warn of NATS settings without effect, and of a URL without TLS."""
    chosen, urls = settings.value("store.backend") == "nats", settings.value("store.nats_url", ())
    at = settings.place("store.backend")
    if at and chosen and not urls and ("store", "nats_url") not in settings.wrong:
        at.wrong("the backend 'nats' in [store] needs 'nats_url'", 'for instance nats_url = "nats://127.0.0.1:4222"')
    for key in ("nats_url", "nats_secret", "nats_ca_file", "nats_replicas"):
        if (place := settings.place(f"store.{key}")) and not chosen:
            place.warn(f"'{key}' in [store] is not used without the backend 'nats'", 'add backend = "nats"')
    beyond = [url for url in urls if url.startswith("nats://") and not is_loopback(urlsplit(url).hostname or "")]
    at = settings.place("store.nats_url")
    if at and chosen and beyond:
        at.warn(
            f"'nats_url' in [store] is beyond this machine without TLS: {', '.join(beyond)}",
            "dial tls://, unless something else keeps others from reading and changing what passes",
        )


def _check_aql_profile(settings: Settings) -> None:
    """Report an AQL profile that is neither built in nor described in the configuration."""
    profile, families = settings.value("aql.profile", "crude"), settings.value("aql.families")
    at = settings.place("aql.profile")
    if at and profile not in PROFILES and not families:
        at.wrong(
            f"'profile' in [aql] must be one of {', '.join(PROFILES)}, not {quoted_word(profile)}",
            "or describe it in 'families'",
        )
    if at and profile in PROFILES and families:
        at.wrong(f"{quoted_word(profile)} is a profile that has its families", "give 'families' a name of their own")


def _check_issuers_apart(settings: Settings, auth: AuthPlan) -> None:
    """Report two authorization servers with the same name or URL, and more than one with an introspection URL."""
    at = settings.place("auth.issuers")
    if at is None:
        return
    for key in ("name", "url"):
        values = [getattr(issuer, key) for issuer in auth.issuers]
        if len(set(values)) < len(values):
            at.wrong(f"two entries of 'issuers' in [auth] have the same '{key}'", "give each its own")
    if sum(issuer.introspection_url is not None for issuer in auth.issuers) > 1:
        at.wrong(
            "only one entry of 'issuers' in [auth] may have 'introspection_url'",
            "a token that is not a JWT does not say which server it is for, and must not be shown to the wrong server",
        )


def _check_openness(settings: Settings, node: NodePlan, auth: AuthPlan) -> None:
    """Report settings that are not allowed on a node which other machines can reach, such as calls without a token.
    Also report two endpoints at one address.
    """
    is_local = is_loopback(node.listen.host)
    at = settings.place("node.operator_listen", "node.listen")
    if at and collide(node.listen, node.operator_listen):
        at.wrong(
            f"programs ({node.listen}) and people ({node.operator_listen}) need different addresses",
            "give 'operator_listen' another port",
        )
    at = settings.place("auth.anonymous", "node.listen")
    if at and auth.anonymous == "any" and not is_local:
        at.wrong(
            f"anonymous = 'any' would let every program that reaches {node.listen} call every tool",
            "set it to 'never' and make tokens (`interlock access token --for client --name NAME`), or listen on"
            " 127.0.0.1",
        )
    at = settings.place("aql.strict_mode")
    if at and settings.value("aql.strict_mode") is False:
        if is_local:
            at.warn("'strict_mode' = false in [aql] is for development", "leave it out")
        else:
            at.wrong("'strict_mode' = false in [aql] is for development, and this node listens beyond this machine")
    at = settings.place("auth.issuers")
    if at and auth.issuers and node.public_url is None and not is_local:
        at.wrong(
            f"access tokens are issued for a URL, and {node.listen} is none that clients use",
            "set node.public_url to what clients connect to",
        )


def _warn_of_exposure(settings: Settings, node: NodePlan, anonymous: str) -> None:
    """Warn of endpoints that other machines reach without TLS. Also warn of a proxy on this machine, because calls
    through it look like local calls.
    """
    endpoints = (("listen", node.listen, node.public_url), ("operator_listen", node.operator_listen, node.operator_url))
    for name, address, url in endpoints:
        at = settings.place(f"node.{name}")
        proxied = url is not None and url.lower().startswith("https:")
        if at and node.tls_cert is None and not proxied and not is_loopback(address.host):
            at.warn(
                f"'{name}' in [node] is beyond this machine without TLS: tokens can be read on the network",
                "give tls_cert and tls_key, or put a proxy with TLS in front and set its https URL",
            )
    at = settings.place("node.public_url")
    if at is None or node.public_url is None or anonymous != "loopback" or node.trusted_proxies:
        return
    if is_loopback(node.listen.host) and not is_loopback(urlsplit(node.public_url).hostname or ""):
        at.warn(
            "calls through a proxy on this machine come from loopback and need no token",
            "set auth.anonymous = 'never', or name the proxy in node.trusted_proxies",
        )


def _warn_of_unusable_passkeys(settings: Settings, node: NodePlan) -> None:
    """Warn of passkeys if browsers accept none at the operator endpoint, for example because it has no https."""
    scheme = "http" if node.tls_cert is None else "https"
    if find_relying_party(node.operator_url or f"{scheme}://{node.operator_listen}") is not None:
        return
    for index, anchor in enumerate(settings.lists["anchor"]):
        at = settings.place(f"anchor.{index}")
        if at and anchor.passkey is not None:
            at.inside("passkey").warn(
                f"the passkey of anchor {quoted_word(anchor.name)} approves nothing: "
                "browsers use no passkeys at the operator endpoint",
                "set node.operator_url to a name with https, or to an address of this machine",
            )


def _check_data_folder(settings: Settings, workspace: Path, data: Path, findings: Findings) -> None:
    """Warn of a data folder inside the workspace, where servers could read the node's tokens and keys."""
    if not data.is_relative_to(workspace):
        return
    message = "the data folder is inside the workspace, where servers may read tokens and keys"
    hint = "set 'data' or 'workspace' so that neither holds the other"
    if (at := settings.place("data", "workspace")) is not None:
        at.warn(message, hint)
    else:
        findings.warning(Problem(key="data", message=message, hint=hint))


def _check_packages_folder(settings: Settings, workspace: Path) -> None:
    """Report a folder for packages that contains the workspace or is inside it. Servers could then change programs that
    other servers run.
    """
    packages = settings.top.get("packages")
    at = settings.place("packages")
    if packages is None or at is None:
        return
    if packages.is_relative_to(workspace) or workspace.is_relative_to(packages):
        at.wrong("'packages' and the workspace must not hold each other", "name a folder elsewhere")


def check_names(settings: Settings) -> None:
    """Warn of tools whose qualified names are the same, because the node then offers none of these
    tools (MCP-AX 3.2).
    """
    root = settings.value("ax.root_segment")
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
    for index, rule in enumerate(settings.lists["tool"]):
        if is_qualified(rule.match) and (at := settings.place(f"tool.{index}")):
            written.setdefault(rule.match, at.inside("match"))
    for tool in withhold_colliding_aliases(written).withheld:
        _warn(written[tool.name], tool.name, tool.reason)


def _warn(at: At, name: str, reason: str) -> None:
    what, _, hint = reason.partition("; ")
    at.warn(f"{quoted_word(name, QUALIFIED_MAX)} will be withheld: {what}", hint or "rename it at the server")
