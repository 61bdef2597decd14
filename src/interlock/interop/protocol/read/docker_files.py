"""Docker's descriptions of servers as entries: server.yaml of its registry, and catalogs of its gateway.

AIP-import-12. `allowHosts` and `disableNetwork` are the rare case of a file that says which hosts a server needs.
{{templates}} name parameters that a person gives.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from interlock.interop.protocol.formats import Unreadable, read_data
from interlock.interop.protocol.model import ENTRIES_MAX, Entry, FileReading, Note, PersonInput
from interlock.interop.protocol.read.client_files import HELPERS, host_names, names, text, texts


def is_docker_data(data: Any) -> bool:
    if not isinstance(data, Mapping):
        return False
    return isinstance(data.get("registry"), Mapping) or "startCommand" in data or _describes(data)


def _describes(data: Mapping[str, Any]) -> bool:
    return text(data.get("name")) is not None and ("image" in data or data.get("type") in {"server", "remote", "poci"})


def read_docker(data_untrusted: bytes) -> FileReading:
    try:
        data = read_data(data_untrusted, "yaml")
    except Unreadable as error:
        return FileReading(problem=str(error))
    if not is_docker_data(data):
        return FileReading(problem="it describes no server")
    if "startCommand" in data:
        return FileReading(entries=(_smithery(data),))
    registry = data.get("registry")
    if isinstance(registry, Mapping):
        listed = [(str(name), each) for name, each in registry.items() if isinstance(each, Mapping)]
        return FileReading(entries=tuple(_entry(name, each) for name, each in listed[:ENTRIES_MAX]))
    return FileReading(entries=(_entry(text(data.get("name")) or "server", data),))


def _smithery(data: Mapping[str, Any]) -> Entry:
    start = data["startCommand"]
    helper = next((key for key in HELPERS if isinstance(start, Mapping) and key in start), None)
    message = f"{helper} is code to run and is not imported" if helper else "it does not say how the server is started"
    code = "helper_not_run" if helper else "unsupported"
    return Entry(name="smithery", refused=Note(code=code, text=message))


def _entry(name: str, described: Mapping[str, Any]) -> Entry:
    about, run, config = (_object(described.get(key)) for key in ("about", "run", "config"))
    inputs: dict[str, PersonInput] = {}
    env = texts(run.get("env"))
    for source in (described, config):
        for each in _objects(source.get("env")):
            variable, value = text(each.get("name")), text(each.get("value"))
            if variable is not None and value is not None:
                env[variable] = value
        for each in _objects(source.get("secrets")):
            variable, slug = text(each.get("env")), text(each.get("name"))
            if variable is not None and slug is not None:
                env[variable] = f"{{{{{slug}}}}}"
                inputs[slug] = PersonInput(description=text(each.get("description")) or "", secret=True)
    entry = Entry(
        name=name,
        style="docker",
        title=text(about.get("title")) or text(described.get("title")),
        description=text(about.get("description")) or text(described.get("description")),
        env=env,
        inputs=inputs,
        egress=_egress(described, run),
    )
    remote = described.get("remote")
    if isinstance(remote, Mapping) and (url := text(remote.get("url"))) is not None:
        kind = text(remote.get("transport_type")) or text(remote.get("transport")) or "streamable-http"
        transport = "sse" if kind == "sse" else "http"
        headers = {key: _with_inputs(value, env) for key, value in texts(remote.get("headers")).items()}
        return msgspec.structs.replace(entry, url=url, transport=transport, headers=headers, env={})
    image = text(described.get("image"))
    if image is None or described.get("type") == "poci":
        kind = text(described.get("type")) or "unknown"
        return msgspec.structs.replace(
            entry, refused=Note(code="unsupported", text=f"Docker entries of type {kind[:20]!r} are not run here")
        )
    server: dict[str, Any] = {"kind": "docker", "image": image}
    volumes = [*names(described.get("volumes")), *names(run.get("volumes"))]
    args = [*names(described.get("command")), *names(run.get("command"))]
    server |= {"volumes": volumes} if volumes else {}
    server |= {"args": args} if args else {}
    return msgspec.structs.replace(entry, server=server)


def _with_inputs(value: str, env: Mapping[str, str]) -> str:
    """Replace ${VAR} in a header by the value of the entry's variable."""
    for variable, template in env.items():
        value = value.replace(f"${{{variable}}}", template).replace(f"${variable}", template)
    return value


def _egress(described: Mapping[str, Any], run: Mapping[str, Any]) -> tuple[str, ...] | None:
    if described.get("disableNetwork") is True or run.get("disableNetwork") is True:
        return ()
    hosts = described.get("allowHosts", run.get("allowHosts"))
    return host_names(names(hosts)) if isinstance(hosts, list) else None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
