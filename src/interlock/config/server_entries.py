"""[servers.SEGMENT] -> ServerPlan: exactly one way to reach a server, with only the keys that fit it."""

from pathlib import Path
from typing import Any, Final

from interlock.config import server_keys
from interlock.config.location import WRONG, At, WrongValue
from interlock.config.plan import Dial, OAuthPlan, Package, SandboxPlan, ServerPlan, Spawn
from interlock.config.server_keys import SERVERS
from interlock.credentials.protocol.resource import is_protected

HOMES: Final = "homes/_servers"  # below the data folder; no id of a driver begins so
REACHES: Final = {  # the key that says how a server is reached -> the keys that may stand beside it
    reach: tuple(key.name for key in SERVERS.values() if reach in key.beside) for reach in server_keys.REACHES
}
TRANSPORTS: Final = {reach: server_keys.DIALLED if reach == "url" else ("auto", "stdio") for reach in REACHES}


def server_plan(segment: str, written: dict[str, Any], values: dict[str, Any], at: At) -> ServerPlan | WrongValue:
    """`written` is the table as it stands in its layer, `values` what of it was read without a problem."""
    reach = _reach(written, at)
    if isinstance(reach, WrongValue):
        return WRONG
    faults = [_misfit(reach, name, at) for name in written if name != reach]
    faults += (_transport_fault(reach, values, at), _auth_fault(values, at), _egress_fault(reach, values, at))
    if any(faults) or len(values) < len(written):
        return WRONG
    return ServerPlan(
        segment=segment,
        reach=_dial(values) if reach == "url" else _spawn(segment, reach, values),
        classes=values.get("tools", {}),
        secrets=tuple(dict.fromkeys(at.substituted)),
        unset=tuple(dict.fromkeys(at.unset)),
        timeout_s=values.get("timeout_s", SERVERS["timeout_s"].default),
        result_bytes=values.get("result_bytes"),
        roots=values.get("roots", values.get("files")),
        share=values.get("share", SERVERS["share"].default),
        max_processes=values.get("max_processes", SERVERS["max_processes"].default),
        idle_timeout_s=values.get("idle_timeout_s", SERVERS["idle_timeout_s"].default),
    )


def _reach(written: dict[str, Any], at: At) -> str | WrongValue:
    found = [name for name in REACHES if name in written]
    if len(found) == 1:
        return found[0]
    if not found:
        return at.wrong(f"{at.title} does not say how to reach the server", f"give it one of {', '.join(REACHES)}")
    return at.inside(found[1]).wrong(f"{at.title} has {' and '.join(found)}", "keep one of them")


def _misfit(reach: str, name: str, at: At) -> bool:
    if name in REACHES[reach] or name not in SERVERS:
        return False
    fitting = ", ".join(other for other, beside in REACHES.items() if name in beside)
    at.inside(name).wrong(f"'{name}' in {at.title} does not go with '{reach}'", f"it goes with {fitting}")
    return True


def _transport_fault(reach: str, values: dict[str, Any], at: At) -> bool:
    transport = values.get("transport", "auto")
    if transport in TRANSPORTS[reach]:
        return False
    fitting = " or ".join(TRANSPORTS[reach])
    at.inside("transport").wrong(f"'transport' in {at.title} must be {fitting} beside '{reach}', not '{transport}'")
    return True


def _auth_fault(values: dict[str, Any], at: At) -> bool:
    auth: OAuthPlan | None = values.get("auth")
    if auth is None or "url" not in values:
        return False
    inside = at.inside("auth")
    if any(name.lower() == "authorization" for name in values.get("headers", {})):
        inside.wrong(f"{at.title} has 'auth' and an Authorization header", "keep one of them")
        return True
    if not is_protected(values["url"]):
        inside.wrong(f"'auth' in {at.title} needs an https:// url", "a token must not travel where others can read it")
        return True
    if auth.client_secret is not None and auth.issuer is None:
        inside.warn(
            f"the client_secret in {at.title} goes to whatever authorization server the MCP server names first",
            'name the one it belongs to: issuer = "https://..."',
        )
    if auth.per == "user" and values.get("share", "auto") not in ("auto", "principal"):
        at.inside("share").wrong(
            f"'share' in {at.title} cannot be '{values['share']}' beside auth per = 'user'",
            "each user has a connection of their own: leave it out",
        )
        return True
    return False


def _egress_fault(reach: str, values: dict[str, Any], at: At) -> bool:
    hosts: tuple[str, ...] = values.get("egress", ())
    inside = at.inside("egress")
    if hosts and reach == "docker":
        inside.wrong(f"'egress' in {at.title} can only be [] beside 'docker'", "no host, or leave it out for all")
        return True
    if "*" in hosts:
        inside.warn(f"'egress' in {at.title} lets the server reach any public host", "name the hosts it needs")
    return False


def _dial(values: dict[str, Any]) -> Dial:
    given = {name: values[name] for name in ("headers", "transport", "auth") if name in values}
    return Dial(url=values["url"], **given)


def _spawn(segment: str, reach: str, values: dict[str, Any]) -> Spawn:
    env: dict[str, str] = values.get("env", {})
    command: tuple[str, ...] = values.get("args", ())
    package: Package | None = None
    match reach:
        case "command":
            command = (*values["command"], *command)
        case "npm":
            package = Package(registry="npm", name=values["npm"])
        case "pypi":
            package = Package(registry="pypi", name=values["pypi"])
        case "docker":
            # Only the names stand in the arguments, where other users of the machine could read values.
            handed_on = (word for name in env for word in ("-e", name))
            command = (
                "docker",
                "run",
                "-i",
                "--rm",
                *_container_options(values),
                *handed_on,
                values["docker"],
                *command,
            )
            return Spawn(command=command, env=env)
    return Spawn(
        command=command, env=env, cwd=values.get("cwd"), package=package, sandbox=_maybe_sandbox(segment, values)
    )


def _container_options(values: dict[str, Any]) -> tuple[str, ...]:
    """A container is a sandbox already; it is told what else it may have."""
    mounts = tuple(word for path in values.get("files", ()) for word in ("-v", f"{path}:{path}"))
    return ("--network", "none", *mounts) if "egress" in values or "files" in values else ()


def _maybe_sandbox(segment: str, values: dict[str, Any]) -> SandboxPlan | None:
    if "egress" not in values and "files" not in values:
        return None
    return SandboxPlan(
        home=Path(HOMES) / segment,
        write=values.get("files", ()),
        from_arguments="files" not in values,
        egress=values.get("egress", ()),
        any_program=True,
    )
