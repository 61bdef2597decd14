"""A DRIVER.md, of ours or of another host, as an entry: so that what was exported can be imported (AIP-export-3)."""

from collections.abc import Mapping
from typing import Any

from interlock.drivers.protocol.files.frontmatter import read_frontmatter
from interlock.drivers.protocol.files.server_block import SECRET
from interlock.interop.protocol.model import Entry, FileReading, Note, PersonInput
from interlock.interop.protocol.read.client_files import names, text, texts
from interlock.interop.protocol.read.server_reference import PACKAGED


def read_driver_entry(data_untrusted: bytes) -> FileReading:
    reading = read_frontmatter(data_untrusted, "DRIVER.md")
    front = reading.value
    if front is None:
        return FileReading(problem=f"line {reading.problems[0].line}: {reading.problems[0].message}")
    server = front.data.get("server")
    identifier = text(front.data.get("id"))
    if not isinstance(server, Mapping) or identifier is None:
        return FileReading(problem="it describes no server")
    return FileReading(entries=(_entry(identifier, front.data, server),))


def _entry(identifier: str, data: Mapping[str, Any], server: Mapping[str, Any]) -> Entry:
    env, headers, query = (texts(server.get(key)) for key in ("env", "headers", "query"))
    args = names(server.get("args"))
    secret_names = {
        name for each in (*env.values(), *headers.values(), *query.values(), *args) for name in SECRET.findall(each)
    }
    network = data.get("network")
    url = text(server.get("url"))
    if url is not None and query:
        url += ("&" if "?" in url else "?") + "&".join(f"{name}={value}" for name, value in query.items())
    block: dict[str, Any] | None = None
    command: tuple[str, ...] = ()
    path = text(server.get("path"))
    if server.get("kind") == "binary" and path is not None:
        command = (path, *args)
    elif server.get("kind") in PACKAGED:
        block = {key: value for key, value in server.items() if key not in {"env", "cwd"}}
    elif url is None:
        return Entry(name=identifier, refused=Note(code="unsupported", text="its kind of server is not known here"))
    options = data.get("connection_options")
    return Entry(
        name=identifier,
        style="driver",
        title=text(data.get("name")),
        description=text(data.get("description")),
        transport="sse" if data.get("transport") == "sse" else "http" if url is not None else "stdio",
        command=command,
        server=block,
        env=env,
        cwd=text(server.get("cwd")),
        url=url,
        headers=headers,
        inputs={name: PersonInput(secret=True) for name in secret_names},
        egress=names(network.get("egress")) if isinstance(network, Mapping) else None,
        connect_timeout_ms=options.get("timeout_ms") if isinstance(options, Mapping) else None,
        call_timeout_ms=data.get("timeout_override_ms"),
    )
