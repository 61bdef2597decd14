"""The effective configuration: a Plan as JSON values in the shape of the file, with secrets masked.

`interlock check --effective` and the operator API show it. Two rules keep secrets out. A field that is declared with a
`SecretPart` is masked, entirely or in part. And whatever ${env:NAME} put into the plan of a server is masked in every
text of that server, because any variable of the environment may be a secret.
"""

from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from interlock.config.addresses import Address
from interlock.config.keys import SecretPart, Section, secrets_of
from interlock.config.plan import Dial, Plan, ServerPlan, Spawn
from interlock.config.schema import sections

MASK: Final = "***"


def effective(plan: Plan) -> dict[str, Any]:
    """Return the configuration in effect as JSON values, with secrets masked. `interlock check --effective`
    prints it.
    """
    return {
        "workspace": str(plan.workspace),
        "data": str(plan.data),
        "packages": None if plan.packages is None else str(plan.packages),
        **{section.name: _section_values(section, getattr(plan, section.field)) for section in sections().values()},
    }


def masked_text(text: str, secrets: tuple[str, ...]) -> str:
    """Return `text` with each of the secrets in it replaced by a mask."""
    for secret in sorted(secrets, key=len, reverse=True):  # a secret may hold another
        text = text.replace(secret, MASK)
    return text


def _section_values(section: Section, value: Any) -> Any:
    match section.shape:
        case "segments":
            return {server.segment: _server_values(server) for server in value}
        case "list":
            entries = [_values(entry) for entry in value]
            if section.name == "tool":
                # The capability is written as keys of the entry, and what is not written says nothing.
                entries = [{key: each for key, each in values.items() if each is not None} for values in entries]
                entries = [values | values.pop("capability") for values in entries]
            return entries
        case "table":
            return {name: each for name, each in _values(value).items() if name in section.keys}


def _values(struct: msgspec.Struct) -> dict[str, Any]:
    secrets = secrets_of(type(struct))
    return {
        name: _masked(value, secrets[name]) if name in secrets else _plain(value)
        for name, value in msgspec.structs.asdict(struct).items()
    }


def _plain(value: Any) -> Any:
    match value:
        case Address():
            return str(value)
        case msgspec.Struct():
            return _values(value)
        case tuple():
            return [_plain(each) for each in value]
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case _:
            return msgspec.to_builtins(value, enc_hook=str)


def _masked(value: Any, secret: SecretPart) -> Any:
    """Return a value with its secret part replaced by a mask. `secret` says which part that is."""
    if value is None:
        return None
    match secret:
        case SecretPart.VALUE:
            return dict.fromkeys(value, MASK) if isinstance(value, dict) else MASK
        case SecretPart.ARGUMENTS:
            return [*value[:1], *(MASK for _ in value[1:])]
        case SecretPart.URL_QUERY:
            return _masked_url(value, ())
        case SecretPart.URL_PATH:
            # The path of a webhook is often all that is needed to post to it.
            parts = urlsplit(value)
            return f"{parts.scheme}://{parts.netloc}/{MASK}"
        case SecretPart.URL_LOGIN:
            parts = urlsplit(value)
            login = f"{MASK}@" if parts.username else ""
            return f"{parts.scheme}://{login}{parts.netloc.rpartition('@')[2]}"


def _masked_url(url: str, secrets: tuple[str, ...]) -> str:
    """Return a URL with the secrets in it and its query masked, because keys are often passed as ?key=VALUE."""
    masked = masked_text(url, secrets)
    parts = urlsplit(masked)
    return urlunsplit(parts._replace(query=MASK)) if parts.query else masked


def _server_values(server: ServerPlan) -> dict[str, Any]:
    """Return the settings of a server as a table that a person could write."""
    reach = server.reach
    values: dict[str, Any] = {}
    match reach:
        case Spawn():
            values["command"] = [masked_text(word, server.secrets) for word in reach.command]
            if reach.package is not None:
                values = {reach.package.registry: reach.package.name, "args": values["command"]}
            values |= {"env": dict.fromkeys(reach.env, MASK), "cwd": None if reach.cwd is None else str(reach.cwd)}
            values["transport"] = "stdio"
            if reach.sandbox is not None:
                files = [masked_text(str(path), server.secrets) for path in reach.sandbox.write]
                values |= {"egress": list(reach.sandbox.egress), "files": files}
        case Dial():
            values["url"] = _masked_url(reach.url, server.secrets)
            values |= {"headers": dict.fromkeys(reach.headers, MASK), "transport": reach.transport}
            values["auth"] = None if reach.auth is None else _values(reach.auth)
    if server.roots is not None:
        values["roots"] = [masked_text(str(path), server.secrets) for path in server.roots]
    if isinstance(reach, Spawn):
        values["max_processes"] = server.max_processes
    values |= {"share": server.share, "idle_timeout_s": server.idle_timeout_s}
    if server.result_bytes is not None:
        values["result_bytes"] = server.result_bytes
    return values | {"timeout_s": server.timeout_s, "definitions": server.definitions, "tools": dict(server.classes)}
