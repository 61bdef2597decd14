"""The Plan: what a person wrote, compiled into one frozen value that the node is built from.

Each key of interlock.toml is declared once, on the field that holds its value (`keys`), and a section is a struct
whose fields are its keys. A field without a `Key` is computed. Because a plan is frozen and compared field by field, a
changed configuration is simply a second plan: `difference` tells which keys changed, and `node.reload` which of them
take effect at once (`AT_ONCE`).

Sections about servers are in `plan_servers`, about agents in `plan_agents` and about the tree in `plan_tree`; import
all of them from here. Nothing here reads a file or knows TOML.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec

from interlock.ax.protocol.budget import KEYS, BudgetLimits
from interlock.config.addresses import Address as Address
from interlock.config.addresses import (
    DnsName,
    KeySet,
    Listen,
    MailServer,
    NatsUrls,
    Network,
    Origin,
    Passkey,
    Protected,
    PublicKey,
    Url,
)
from interlock.config.keys import AT_ONCE, Key, SecretPart, Section, StructTable
from interlock.config.order import (
    ADDED_IS_LOOSER,
    ANY_CHANGE,
    FILE_CONTENT,
    FREE,
    GLOB_ADDED_IS_LOOSER,
    LESS_IS_LOOSER,
    MORE_IS_LOOSER,
    REMOVED_IS_LOOSER,
    TRUE_IS_LOOSER,
    Order,
    declared_fields,
    fields,
    fingerprint,
    first_match,
    ranked,
)
from interlock.config.plan_agents import ROOM, ROOMS, AqlPlan, RegistryPlan, RoomsPlan
from interlock.config.plan_agents import AgentPlan as AgentPlan
from interlock.config.plan_agents import AqlDangerPlan as AqlDangerPlan
from interlock.config.plan_agents import RoomPlan as RoomPlan
from interlock.config.plan_agents import SafetyPlan as SafetyPlan
from interlock.config.plan_agents import room_settings as room_settings
from interlock.config.plan_servers import (
    AMOUNT,
    BUDGET,
    CALLS,
    MESSAGE_SIZE,
    MONTH_S,
    OAUTH_SCOPE,
    SERVERS,
    SET_CALLS,
    TEXT,
    ServerTable,
    ToolCapability,
)
from interlock.config.plan_servers import Dial as Dial
from interlock.config.plan_servers import DriversPlan as DriversPlan
from interlock.config.plan_servers import OAuthPlan as OAuthPlan
from interlock.config.plan_servers import Package as Package
from interlock.config.plan_servers import PolicyPlan as PolicyPlan
from interlock.config.plan_servers import SandboxPlan as SandboxPlan
from interlock.config.plan_servers import ServerPlan as ServerPlan
from interlock.config.plan_servers import Spawn as Spawn
from interlock.config.plan_servers import ToolClass as ToolClass
from interlock.config.plan_servers import ToolRule as ToolRule
from interlock.config.plan_tree import AUTHORITY
from interlock.config.plan_tree import AxPlan as AxPlan
from interlock.config.plan_tree import ChildPlan as ChildPlan
from interlock.config.plan_tree import DegradedPlan as DegradedPlan
from interlock.config.plan_tree import DevicePlan as DevicePlan
from interlock.config.plan_tree import DevicesPlan as DevicesPlan
from interlock.config.plan_tree import ParentPlan as ParentPlan
from interlock.config.secret_uses import SECRETS, SecretUse
from interlock.config.value_types import Choice, CommandLine, Many, Seconds, Table, Text, Whole
from interlock.rooms.protocol.settings import RoomSettings

Scope = Literal["read", "write", "admin"]
NameForm = Literal["auto", "qualified", "safe"]
Surface = Literal["flat", "auto", "aql", "aql-single", "safety"]
Channel = Literal["console", "cli", "os_dialog", "command", "webhook", "smtp"]

KEY_SOURCES: Final = ("key", "jwks", "passkey")
_NAME: Final = Text(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", "1 to 63 of the characters A-Z a-z 0-9 . _ -")
_MAIL_ADDRESS: Final = Text(r"[^@\s<>,]{1,64}@[^@\s<>,]{1,255}", "a mail address, such as ops@example.com")

# Who may connect, and where


class NodePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the node and its two endpoints: the public one for programs, and the operator's one for people.

    Keys:
        name: The node's name; replicas of one node share it, and so its identity.
        listen: Where programs connect (the public endpoint). Port 0: the system chooses.
        public_url: How clients reach the public endpoint, when that differs from `listen` (a proxy in front).
        operator_listen: Where people connect (the operator endpoint). Never the address of the public endpoint.
        operator_url: How people reach the operator endpoint, when that differs from `operator_listen`.
        tls_cert: Certificate chain (PEM). Needs tls_key.
        tls_key: Private key (PEM). Needs tls_cert.
        client_ca: CA certificates (PEM). A subserver's client certificate under them proves its authority.
        crl: Which certificates of client_ca are revoked (PEM); read again when it changes. Needs client_ca.
        origins: Web pages that may call this node, besides those on this machine.
        trusted_proxies: Proxies whose word on the caller's address is believed (Forwarded, X-Forwarded-For).
    """

    name: Annotated[
        str, Text(r"[A-Za-z0-9_.-]{1,63}", "1 to 63 of the characters A-Z a-z 0-9 _ . -"), Key("office"), FREE
    ] = "default"
    listen: Annotated[Address, Listen(), Key("127.0.0.1:7411"), FREE] = Address("127.0.0.1", 7411)
    # Access tokens that are for this address are accepted.
    public_url: Annotated[str | None, Url(), Key("https://mcp.example.com"), ANY_CHANGE] = None
    operator_listen: Annotated[Address, Listen(), Key("127.0.0.1:7412"), FREE] = Address("127.0.0.1", 7412)
    # Where people are sent to decide, and whose pages may call the operator endpoint.
    operator_url: Annotated[str | None, Url(), Key("https://operator.example.com"), ANY_CHANGE] = None
    tls_cert: Annotated[Path | None, Key("tls/cert.pem"), FREE] = None
    tls_key: Annotated[Path | None, Key("tls/key.pem"), FREE] = None
    client_ca: Annotated[Path | None, Key("tls/ca.pem"), FILE_CONTENT] = None
    crl: Annotated[Path | None, Key("tls/crl.pem"), ANY_CHANGE] = None
    origins: Annotated[tuple[str, ...], Many(Origin()), Key(["https://app.example.com"]), ADDED_IS_LOOSER] = ()
    trusted_proxies: Annotated[tuple[str, ...], Many(Network()), Key(["10.0.0.0/8"]), ADDED_IS_LOOSER] = ()


class IssuerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An authorization server whose access tokens the public endpoint accepts."""

    name: Annotated[str, _NAME]  # ISS in client:ISS/SUB@CLIENT_ID
    url: Annotated[str, Protected()]  # the issuer identifier, to the letter
    audience: str | None = None  # None: the node's own resource identifier
    # None: from the metadata of the authorization server
    jwks_url: Annotated[str | None, Protected(), SecretPart.URL_QUERY] = None
    introspection_url: Annotated[str | None, Protected(), SecretPart.URL_QUERY] = None
    client_id: Annotated[str | None, Text(references=True)] = None
    client_secret: Annotated[str | None, Text(references=True), SecretPart.VALUE] = None
    # None: the usual names; empty: [[access]] alone decides
    scopes: Annotated[
        dict[str, Scope] | None, Table(names=OAUTH_SCOPE, names_are="an OAuth scope", item=Choice(get_args(Scope)))
    ] = None


_ISSUERS: Final = Many(
    StructTable(
        IssuerPlan,
        "an issuer",
        where="[[auth.issuers]]",
        needs={
            "introspection_url": ("client_id", "client_secret"),
            "client_id": ("introspection_url",),
            "client_secret": ("introspection_url",),
        },
    )
)


class AuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that decide who may connect to the public endpoint. `AccessRule` decides what a caller may do there.

    Keys:
        anonymous: Which programs may call without a token: those on this machine, none, or all that can connect.
        issuers: Authorization servers whose access tokens the public endpoint accepts, as
            client:NAME/SUBJECT@CLIENT_ID.
        token_days: How long a new token is valid, in days.
    """

    anonymous: Annotated[Literal["loopback", "never", "any"], Key("never"), ranked("never", "loopback", "any")] = (
        "loopback"
    )
    issuers: Annotated[
        tuple[IssuerPlan, ...],
        _ISSUERS,
        Key([{"name": "corp", "url": "https://login.example.com", "scopes": {"mcp.use": "write"}}]),
        ADDED_IS_LOOSER,
    ] = ()
    token_days: Annotated[int, Whole(1, 3650), Key(90), MORE_IS_LOOSER] = 30


def _join_rule_budgets(signed: BudgetLimits | None, written: BudgetLimits | None, rule: "AccessRule") -> Any:
    """Return the stricter of two limits in an [[access]] entry. A new limit for a subserver takes effect only after a
    signature, because it replaces the limits of [budget].
    """
    if written is None or _is_for_clients(rule):
        return CALLS.join(signed, written, rule)
    return SET_CALLS.join(signed, written, rule)


_RULE_BUDGET: Final = Order("rule_budget", _join_rule_budgets)
_CLIENTS: Final = ("client:", "role:")


class AccessRule(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of [[access]]: what certain principals may do. The first entry that matches a principal applies.

    Keys:
        who: Principals (globs) the entry is for; the first entry that holds the caller applies.
        scope: The most a caller may do.
        tools: Tools (globs) the caller may use.
        names: Form of the tool names for these callers.
        surface: What /mcp shows these callers.
        authority: What these subservers speak for when they register from this machine, without further proof.
        secure_by: What protects the links of these subservers, where it is not TLS 1.3.
        link_latency_ms: What the way to these subservers takes; raises the latency class of their tools.
        budget: How much each of these callers may use; for subservers: instead of what [budget] says.
    """

    who: Annotated[
        tuple[str, ...],
        Many(Text(), least=1),
        Key(
            [
                "client:ci",
                "client:team-*",
                "client:corp/*@build",
                "role:corp/reader",
                "certificate:edge.example.com",
                "uid:1000",
            ]
        ),
        ANY_CHANGE,
    ]
    scope: Annotated[Scope, Key("read"), ranked("read", "write", "admin")] = "write"
    tools: Annotated[tuple[str, ...], Key(["files.read_*"]), GLOB_ADDED_IS_LOOSER] = ("*",)
    names: Annotated[NameForm | None, Key("qualified"), FREE] = None
    surface: Annotated[Surface | None, Key("aql"), FREE] = None
    authority: Annotated[str | None, AUTHORITY, Key("dns:edge01.example.com"), ANY_CHANGE] = None
    secure_by: Annotated[str | None, Key("WireGuard"), ANY_CHANGE] = None
    link_latency_ms: Annotated[int, Whole(0, 3_600_000), Key(700), FREE] = 0
    # A subserver gets this budget for its registration, instead of the one in [budget].
    budget: Annotated[BudgetLimits | None, BUDGET, Key({"max_calls_per_minute": 60}), _RULE_BUDGET] = None


def _is_for_clients(rule: AccessRule) -> bool:
    """Return whether an [[access]] entry applies only to clients and to no subserver."""
    return all(who.startswith(_CLIENTS) for who in rule.who)


def _without_added_rule(rule: AccessRule) -> AccessRule | None:
    """Return an [[access]] entry with the least rights that the principals of `rule` have without `rule`. Return None
    if these principals are certificates or users of this machine, which cannot register without an entry.
    """
    if any(who.startswith(("certificate:", "uid:")) for who in rule.who):
        return None
    return AccessRule(who=rule.who, scope="write" if _is_for_clients(rule) else "read")


class AnchorPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of [[anchor]]: a key whose signatures the node trusts, and what they may approve.

    Exactly one of `key`, `jwks` and `passkey` is set.

    Keys:
        name: What the anchor is called in the log and in the audit.
        key: Its public key: ed25519:BASE64, a JWK, PEM, or the file that holds one of them.
        jwks: Its key set: a URL (https, or http on this machine), or a file.
        passkey: A person's passkey, as `interlock access passkey NAME` prints it.
        approves: Tools (globs over qualified names) whose calls it may approve.
        speaks_for: DNS names it may prove for subservers that register (their `authority`).
    """

    name: Annotated[str, _NAME, Key("plant"), FREE]
    key: Annotated[
        str | Path | None, PublicKey(), Key("ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="), FREE
    ] = None
    jwks: Annotated[str | Path | None, KeySet(), Key("https://login.example.com/jwks"), FREE] = None
    # ALGORITHM:CREDENTIAL:KEY (`crypto.webauthn.passkeys`)
    passkey: Annotated[
        str | None, Passkey(), Key("ed25519:AbCdEf0123456789:11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"), FREE
    ] = None
    approves: Annotated[tuple[str, ...], Key(["files.*"]), FREE] = ()
    # In the form in which names are compared (`ax.protocol.registration.authority`).
    speaks_for: Annotated[tuple[str, ...], Many(DnsName()), Key(["edge01.example.com"]), FREE] = ()


def _remember_anchors(anchors: tuple[AnchorPlan, ...], _: object) -> dict[str, list[Any]]:
    return {each.name: [_keys(each), list(each.speaks_for)] for each in anchors}


def _keys(anchor: AnchorPlan) -> str:
    return fingerprint([anchor.key, anchor.jwks, anchor.passkey])


def _join_anchors(signed: dict[str, list[Any]], written: tuple[AnchorPlan, ...], _: object) -> tuple[AnchorPlan, ...]:
    """Return the written anchors. Each keeps only those DNS names that were signed for it together
    with the same keys.
    """
    names = {
        each.name: spoken
        for each in written
        for keys, spoken in [signed.get(each.name, ["", []])]
        if keys == _keys(each)
    }
    return tuple(
        msgspec.structs.replace(
            each, speaks_for=tuple(name for name in each.speaks_for if name in names.get(each.name, ()))
        )
        for each in written
    )


# What an anchor may approve is enrolled with a proof (`approvals.enrolments`), so that only `speaks_for` is left.
_ANCHORS: Final = Order("anchors", _join_anchors, _remember_anchors)


# What clients see


class McpPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for what MCP clients see. An [[access]] entry may set other values for its principals.

    Keys:
        surface: What /mcp shows: every tool (flat), a few AQL endpoints (aql), one (aql-single), or by size (auto).
        names: Form of tool names: with dots, safe for clients that refuse dots, or by client.
        meta_pass: Whether servers' own _meta keys reach the client.
        latency_meta: Whether results say how long the call took.
        session_idle_s: After how many idle seconds a client's session ends.
        list_wait_s: How long lists wait for servers that were just started; then they name what is missing.
    """

    surface: Annotated[Surface, Key("auto"), FREE] = "flat"
    names: Annotated[NameForm, Key("safe"), FREE] = "auto"
    meta_pass: Annotated[Literal["vendor", "none"], Key("none"), ANY_CHANGE] = "vendor"  # noqa: S105
    latency_meta: Annotated[bool, Key(True), FREE] = False
    session_idle_s: Annotated[float, Seconds(1, MONTH_S), Key(3600), FREE] = 1800
    list_wait_s: Annotated[float, Seconds(0, 600), Key(30), FREE] = 10


# What waits for a person


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for calls that are held until a person approves them (MCP-AX 11.3).

    Keys:
        mode: Whether calls that cannot be undone wait for a person: all, those no node below holds, or none.
        also: Further tools (globs) whose calls wait for a person, whatever they say of themselves.
        unannotated: Tools that do not say what they do: wait until an operator has said it once, or are called at once.
        show_holder: Whether clients are shown the id and the page of a node below that holds their call.
    """

    # defer: leave a call to the node below that holds it
    mode: Annotated[Literal["gated", "defer", "open"], Key("defer"), ranked("gated", "defer", "open")] = "gated"
    also: Annotated[tuple[str, ...], Key(["mail.send_*"]), REMOVED_IS_LOOSER] = ()
    unannotated: Annotated[Literal["classify", "allow"], Key("allow"), ranked("classify", "allow")] = "classify"
    show_holder: Annotated[bool, Key(True), TRUE_IS_LOOSER] = False


def _remember_channels(channels: tuple[Channel, ...], approvals: "ApprovalsPlan") -> dict[str, str]:
    return {each: fingerprint(approvals.receiver(each)) for each in channels if each not in _SHOWS_NO_CODE}


def _join_channels(
    signed: dict[str, str], written: tuple[Channel, ...], approvals: "ApprovalsPlan"
) -> tuple[Channel, ...]:
    """Return the written notification channels that have the same receiver as when they were signed, or that never show
    a verification code.
    """
    present = _remember_channels(written, approvals)
    return tuple(each for each in written if each in _SHOWS_NO_CODE or signed.get(each) == present[each])


_SHOWS_NO_CODE: Final = ("console", "cli")
_CHANNELS: Final = Order("channels", _join_channels, _remember_channels)


class ApprovalsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the inbox of approvals: how long a decision may take, and how operators are notified.

    Keys:
        expiry_s: How long a held call waits for a decision.
        redeem_s: How long an approved call may then be made; never longer than its proof is good.
        max_pending: How many calls of one caller may wait at once.
        channels: Where operators hear that something waits: the page, `interlock approvals --watch`, a notification on
            this machine's desktop, a command, a webhook, a mail.
        command: For the channel command: a program to start; it is told what waits in a line of JSON on stdin.
        webhook_url: For the channel webhook: where to post it.
        webhook_secret: The key under which the receiver checks that it comes from here (HMAC-SHA256). ${env:NAME} is
            replaced.
        smtp_url: For the channel smtp: the mail server. To another machine always over TLS. ${env:NAME} is replaced.
        smtp_from: For the channel smtp: who the mails are from.
        smtp_to: For the channel smtp: who they go to.
    """

    # AX-11.3-4
    expiry_s: Annotated[float, Seconds(30, 86_400), Key(900), MORE_IS_LOOSER] = 300
    redeem_s: Annotated[float, Seconds(30, 86_400), Key(60), MORE_IS_LOOSER] = 300
    max_pending: Annotated[int, Whole(1, 10_000), Key(20), FREE] = 100
    channels: Annotated[tuple[Channel, ...], Key(["cli", "os_dialog"]), _CHANNELS] = ("console", "cli")
    command: Annotated[tuple[str, ...], CommandLine(), Key("notify-team"), SecretPart.ARGUMENTS, FREE] = ()
    webhook_url: Annotated[
        str | None, Url(outward=True), Key("https://hooks.example.com/interlock"), SecretPart.URL_PATH, FREE
    ] = None
    webhook_secret: Annotated[str | None, TEXT, Key("a-long-random-text"), SecretPart.VALUE, FREE] = None
    smtp_url: Annotated[
        str | None,
        MailServer(references=True),
        Key("smtps://interlock:${env:MAIL_PASSWORD}@mail.example.com"),
        SecretPart.URL_LOGIN,
        FREE,
    ] = None
    smtp_from: Annotated[str | None, _MAIL_ADDRESS, Key("interlock@example.com"), FREE] = None
    smtp_to: Annotated[tuple[str, ...], Many(_MAIL_ADDRESS), Key(["ops@example.com"]), FREE] = ()

    def receiver(self, channel: Channel) -> tuple[Any, ...]:
        """Return the settings that say where a notification channel sends its messages."""
        prefix = {"command": "command", "webhook": "webhook_", "smtp": "smtp_"}.get(channel, "-")
        return tuple(getattr(self, name) for name in self.__struct_fields__ if name.startswith(prefix))


# Limits and storage


class UnitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The number of units that a call costs, for each cost class of a tool."""

    free: int = 0
    metered: int = 1
    expensive: int = 10


class BudgetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on what each registered subserver may use during one session (MCP-AX 11.4).

    Keys:
        max_calls_per_minute: How many calls a subserver may get, and requests it may send, within any minute. Default:
            no limit.
        max_mutable_calls_per_session: How many of its calls may change something until it registers again. Default: no
            limit.
        max_cost_units_per_session: How many units its calls may cost until it registers again. Default: no limit.
        units: How many units a call costs, by the cost_class of its tool.
    """

    max_calls_per_minute: Annotated[int | None, AMOUNT, Key(60), MORE_IS_LOOSER] = None
    max_mutable_calls_per_session: Annotated[int | None, AMOUNT, Key(10), MORE_IS_LOOSER] = None
    max_cost_units_per_session: Annotated[int | None, AMOUNT, Key(1000), MORE_IS_LOOSER] = None
    units: Annotated[
        UnitsPlan,
        StructTable(UnitsPlan, "the units of a call", example="units = { expensive = 50 }", each=AMOUNT),
        Key({"metered": 2, "expensive": 50}),
        fields(free=LESS_IS_LOOSER, metered=LESS_IS_LOOSER, expensive=LESS_IS_LOOSER),
    ] = UnitsPlan()

    @property
    def limits(self) -> BudgetLimits:
        """Return the limits as MCP-AX defines them, without the costs of calls."""
        return BudgetLimits(**{name: getattr(self, name) for name in KEYS})


class LimitsPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the resources of clients, servers and sandboxes.

    Only the request or process that exceeds a limit fails.

    Keys:
        message_bytes: The largest message taken from anybody: a body, a line, a frame.
        calls_in_flight: How many calls may wait for servers at once.
        own_processes: How many processes principals, sessions and tenants may have of their own, at all servers
            together.
        sandbox_memory_mb: How much memory all processes in one sandbox may use, unless a driver's runner says it.
        sandbox_processes: How many processes and threads may run in one sandbox.
        sandbox_disk_mb: How much a sandboxed server may keep in its own home, temporary files included.
    """

    message_bytes: Annotated[int, MESSAGE_SIZE, Key("64Mi"), FREE] = 16 * 1024 * 1024
    calls_in_flight: Annotated[int, Whole(1, 1_000_000), Key(256), FREE] = 1024
    own_processes: Annotated[int, Whole(1, 100_000), Key(32), FREE] = 64
    sandbox_memory_mb: Annotated[int, Whole(16, 1024**2), Key(1024), MORE_IS_LOOSER] = 4096
    sandbox_processes: Annotated[int, Whole(16, 1_000_000), Key(256), MORE_IS_LOOSER] = 2048
    sandbox_disk_mb: Annotated[int, Whole(16, 1024**2), Key(512), MORE_IS_LOOSER] = 4096


class StorePlan(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the store, which contains approvals, tokens, names and the audit log.

    Keys:
        backend: What remembers: a file in the data folder, or NATS JetStream, which replicas of this node share.
        nats_url: For the backend nats: its servers, nats:// or tls://, in a list or with commas between.
        nats_secret: For the backend nats: user:password, a token, an nkey seed or the text of a credentials file.
            ${env:NAME} and ${secrets.NAME} are replaced.
        nats_ca_file: For the backend nats: who may vouch for its servers, where the system's own authorities do not.
        nats_replicas: For the backend nats: on how many servers of the cluster each thing is kept.
        audit_days: How long audit records are kept, in days; 0 keeps them for ever.
        shared: A folder that the aggregators of one tree on this machine share: a subserver is with one of them only.
    """

    backend: Annotated[Literal["sqlite", "nats"], Key("sqlite"), FREE] = "sqlite"
    nats_url: Annotated[
        tuple[str, ...], NatsUrls(), Key(["tls://nats-1.example.com:4222", "tls://nats-2.example.com:4222"]), FREE
    ] = ()
    nats_secret: Annotated[
        str | None, Text(references=True, stored=True), Key("${secrets.nats}"), SecretPart.VALUE, FREE
    ] = None
    nats_ca_file: Annotated[Path | None, Key("/etc/interlock/nats-ca.pem"), FREE] = None
    nats_replicas: Annotated[int, Whole(1, 5), Key(3), FREE] = 1
    audit_days: Annotated[int, Whole(0, 36500), Key(365), ANY_CHANGE] = 0
    # MCP-AX 13.4
    shared: Annotated[Path | None, Key("/srv/interlock-tree"), FREE] = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a node. Each field is a section of interlock.toml, or a key above all sections.

    Keys:
        workspace: The folder servers work in. Default: the folder of the configuration file.
        data: Where the node keeps its identity, tokens and audit log; outside the workspace. Default: interlock in the
            user's data folder.
        packages: Where packages of servers are installed, once for all data folders of the user. Default:
            interlock-packages in the user's data folder.
    """

    workspace: Annotated[Path, Key("~/projects/garden", default="."), FREE]
    data: Annotated[Path, Key("~/.local/share/interlock"), FREE]
    packages: Annotated[Path | None, Key("~/.local/share/interlock-packages"), ANY_CHANGE] = None
    node: Annotated[NodePlan, Section("The node and its two endpoints.")] = NodePlan()
    auth: Annotated[AuthPlan, Section("Who may come in.")] = AuthPlan()
    access: Annotated[
        tuple[AccessRule, ...],
        Section("What a caller may do; without an entry: write."),
        AT_ONCE,
        first_match("who", declared_fields(AccessRule), lambda rule: AccessRule(who=rule.who), _without_added_rule),
    ] = ()
    anchors: Annotated[
        tuple[AnchorPlan, ...],
        Section("Whose signatures are believed, and for what.", name="anchor", one_of=KEY_SOURCES),
        AT_ONCE,
        _ANCHORS,
    ] = ()
    mcp: Annotated[McpPlan, Section("What MCP clients see.")] = McpPlan()
    aql: Annotated[AqlPlan, Section("Operations behind a few endpoints (MCP-AQL).")] = AqlPlan()
    ax: Annotated[AxPlan, Section("The tree.")] = AxPlan()
    degraded: Annotated[DegradedPlan, Section("What happens to the tools of a lost subserver.")] = DegradedPlan()
    gate: Annotated[GatePlan, Section("What waits until a person agrees."), AT_ONCE] = GatePlan()
    approvals: Annotated[ApprovalsPlan, Section("What waits for a decision, and who is notified."), AT_ONCE] = (
        ApprovalsPlan()
    )
    servers: Annotated[
        tuple[ServerPlan, ...],
        Section("The MCP servers, by segment.", entry=ServerTable, shape="segments"),
        AT_ONCE,
        SERVERS,
    ] = ()
    drivers: Annotated[DriversPlan, Section("Servers that are declared as files."), AT_ONCE] = DriversPlan()
    tools: Annotated[
        tuple[ToolRule, ...],
        Section("What is known better than a server says about its tools.", name="tool", also=ToolCapability),
        AT_ONCE,
        first_match("match", declared_fields(ToolRule), lambda rule: ToolRule(match=rule.match)),
    ] = ()
    safety: Annotated[SafetyPlan, Section("Agents whose steps are reported and judged."), AT_ONCE] = SafetyPlan()
    rooms: Annotated[RoomsPlan, Section("What holds for every room (MCPx)."), AT_ONCE, ROOMS] = RoomsPlan()
    room: Annotated[
        tuple[RoomPlan, ...],
        Section("A room: a topic that agents, people and robots share.", also=RoomSettings),
        AT_ONCE,
        ROOM,
    ] = ()
    devices: Annotated[DevicesPlan, Section("Microcontrollers and PLCs.")] = DevicesPlan()
    registry: Annotated[RegistryPlan, Section("The registry of tool surface names."), AT_ONCE] = RegistryPlan()
    budget: Annotated[BudgetPlan, Section("What a registered subserver may use."), AT_ONCE] = BudgetPlan()
    limits: Annotated[LimitsPlan, Section("What is too much.")] = LimitsPlan()
    store: Annotated[StorePlan, Section("Where the node remembers.")] = StorePlan()
    # Computed, last, from what counts of all other fields: uses of stored secrets that no person confirmed.
    withheld_secrets: Annotated[tuple[SecretUse, ...], AT_ONCE, SECRETS] = ()
