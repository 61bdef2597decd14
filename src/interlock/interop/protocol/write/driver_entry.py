"""A driver as a client would start or dial it by itself, without Interlock in between (AIP-export-2).

Secrets are variables of the client's environment, in the client's own spelling; for a client that expands none there
is no such entry, and it runs the driver through Interlock instead.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec

from interlock.drivers.protocol.files.inventory import secret_for
from interlock.drivers.protocol.files.placeholders import SECRET
from interlock.drivers.protocol.kinds.remote import Remote
from interlock.drivers.protocol.kinds.server import LocalServer
from interlock.drivers.protocol.model import Driver, Secrets
from interlock.interop.protocol.clients import Client
from interlock.interop.protocol.write.client_entry import http_entry, stdio_entry

_ENVIRONMENT = "env://"


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    entry: Mapping[str, Any]
    variables: tuple[str, ...] = ()  # what the client's environment has to hold


def driver_entry(driver: Driver, secrets: Secrets | None, client: Client, name: str) -> Exported | None:
    """None: this client cannot have it without a secret in its file, or cannot dial."""
    if driver.secret_names and client.expands is None:  # AIP-export-2
        return None
    if isinstance(driver.server, Remote) and (client.stdio_only or driver.server.auth is not None):
        return None
    if driver.sandbox is not None and driver.sandbox.env is not None and driver.sandbox.env.set:
        return None  # defaults have no place there
    variables = {each: _variable(each, driver, secrets) for each in driver.secret_names}
    spelling = client.expands or ""

    def filled(text: str) -> str:
        return SECRET.sub(lambda found: spelling.replace("VAR", variables[found[1]]), text)

    entry = _entry(driver, client, name, filled)
    return Exported(entry=entry, variables=tuple(dict.fromkeys(variables.values())))


def _variable(name: str, driver: Driver, secrets: Secrets | None) -> str:
    entry = secret_for(name, driver.id, secrets, ())
    if entry is not None and entry.backend is not None and entry.backend.startswith(_ENVIRONMENT):
        return entry.backend.removeprefix(_ENVIRONMENT)
    return name


def _entry(driver: Driver, client: Client, name: str, filled: Callable[[str], str]) -> dict[str, Any]:
    server = driver.server
    if isinstance(server, Remote):
        url = server.url
        if server.query:
            # A placeholder is for the client to fill in and stays as it is written.
            pairs = "&".join(f"{urlencode({key: ''})}{filled(value)}" for key, value in server.query.items())
            url += ("&" if "?" in url else "?") + pairs
        headers = {key: filled(value) for key, value in server.headers.items()}
        return http_entry(client, name, url, headers, sse=driver.transport == "sse")
    if not isinstance(server, LocalServer):
        raise TypeError(f"a server of kind {server.kind} is neither dialled nor started")
    env = {key: filled(value) for key, value in server.env.items()}
    command = server.client_command([filled(each) for each in server.args], list(env))
    return stdio_entry(client, name, command, env)
