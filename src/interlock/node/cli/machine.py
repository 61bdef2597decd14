"""What a configuration needs of this machine and does not find here: programs, scripts, folders, files, secrets.

Only looked for, never started. The node runs without them, and the server in question stands as failed: hence warnings,
at the place where each was written.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import which

from msgspec.structs import replace

from interlock.config.effective import masked_text
from interlock.config.load import Loaded, Problem
from interlock.config.plan import ServerPlan, Spawn
from interlock.config.problems import At
from interlock.config.value_types import SECRET_REFERENCE, secret_slug
from interlock.process.child import (
    RESERVED_PREFIX,
    ChildStartFailed,
    child_environment,
    missing_script,
    program,
)


def missing_on_machine(loaded: Loaded) -> tuple[Problem, ...]:
    return tuple(_find_missing(loaded))


def _find_missing(loaded: Loaded) -> Iterator[Problem]:
    plan = loaded.plan
    for key in ("tls_cert", "tls_key", "client_ca", "crl"):
        at, path = loaded.written.get(("node", key)), getattr(plan.node, key)
        if at is not None and path is not None and not path.is_file():
            yield at.problem(f"there is no file {path}", "the node cannot start without it")
    at = loaded.written.get(("store", "nats_ca_file"))
    if at is not None and plan.store.nats_ca_file is not None and not plan.store.nats_ca_file.is_file():
        yield at.problem(f"there is no file {plan.store.nats_ca_file}", "the node cannot start without it")
    yield from _files(loaded)
    at = loaded.written.get(("", "workspace"))
    if at is not None and not plan.workspace.is_dir():
        yield at.problem(f"there is no folder {plan.workspace}", "make it, or correct the path")
    yield from _missing_secrets(loaded)
    unavailable = no_sandbox() if any(is_sandboxed(server) for server in plan.servers) else None
    for server in plan.servers:
        at = loaded.written.get(("servers", server.segment))
        if at is not None and isinstance(server.reach, Spawn):
            if unavailable is not None and is_sandboxed(server):
                yield at.problem(unavailable, "until then the server does not start")
            problems = _of_server(server, server.reach, at, plan.workspace)
            for problem in (*problems, *_covered_programs(server.reach, at, plan.servers)):
                yield replace(problem, message=masked_text(problem.message, server.secrets))


def _covered_programs(reach: Spawn, at: At, servers: Iterable[ServerPlan]) -> Iterator[Problem]:
    """Yield a problem for a program of another server that this one could write."""
    written = [os.path.realpath(path) for path in reach.sandbox.write] if reach.sandbox is not None else []
    if not written:
        return
    from interlock.process.sandbox.host_paths import server_programs

    for each in server_programs(server for server in servers if server.reach is not reach):
        if any(each.path.is_relative_to(path) for path in written):
            message = f"it could write {each.path}, a program of {each.segment}, and is not started"
            yield at.inside("files").problem(message, "name folders beside it")
            return


def _missing_secrets(loaded: Loaded) -> Iterator[Problem]:
    """Yield a problem for each secret that a server or the store on NATS needs and the store of secrets does not
    have.
    """
    wanted = {("servers", server.segment): _secrets_of(server) for server in loaded.plan.servers}
    wanted["store", "nats_secret"] = _slugs(loaded.plan.store.nats_secret or "")
    if not any(wanted.values()):
        return
    from interlock.store.ports import StoreError
    from interlock.store.sqlite.secrets import names_on_disk

    try:
        stored = names_on_disk(loaded.plan.data, "secret")
    except StoreError as refused:
        yield Problem(message=str(refused))
        return
    for key, slugs in wanted.items():
        at = loaded.written.get(key)
        if at is None:
            continue
        for slug in sorted(slugs - stored):
            yield at.problem(f"it needs the secret {slug}, which is not set", f"interlock secrets set {slug}")


def _secrets_of(server: ServerPlan) -> frozenset[str]:
    reach = server.reach
    if isinstance(reach, Spawn):
        texts = [*reach.env.values()]
    else:
        texts = [*reach.headers.values(), (reach.auth.client_secret or "") if reach.auth is not None else ""]
    return _slugs(*texts)


def _slugs(*texts: str) -> frozenset[str]:
    return frozenset(secret_slug(reference[1]) for text in texts for reference in SECRET_REFERENCE.finditer(text))


def is_sandboxed(server: ServerPlan) -> bool:
    """Return whether a server that the node starts is in a sandbox. A container is a sandbox already."""
    return isinstance(server.reach, Spawn) and server.reach.sandbox is not None


def no_sandbox() -> str | None:
    from interlock.process.sandbox.bubblewrap import bubblewrap
    from interlock.process.sandbox.host_paths import SandboxFailed

    try:
        bubblewrap()
    except SandboxFailed as failed:
        return str(failed)
    return None


def _files(loaded: Loaded) -> Iterator[Problem]:
    """Yield a problem for each missing file of an anchor or of a link to a parent."""
    named: list[tuple[At | None, str, object]] = []
    for index, anchor in enumerate(loaded.plan.anchors):
        at = loaded.written.get(("anchor", str(index)))
        named += [(at, "key", anchor.key), (at, "jwks", anchor.jwks)]
    above = loaded.written.get(("ax", "parents"))
    for index, parent in enumerate(loaded.plan.ax.parents):
        at = above.inside(index) if above is not None else None
        named += [(at, key, getattr(parent, key)) for key in ("ca_file", "tls_cert", "tls_key")]
    for place, key, path in named:
        if place is not None and isinstance(path, Path) and not path.is_file():
            yield place.inside(key).problem(f"there is no file {path}", "the node cannot start without it")


def _of_server(server: ServerPlan, reach: Spawn, at: At, workspace: Path) -> Iterator[Problem]:
    cwd = reach.cwd
    for index, path in enumerate(reach.sandbox.write if reach.sandbox is not None else ()):
        if not path.exists():
            yield at.inside("files").inside(index).problem(f"there is no {path}", "make it, or correct the path")
    if cwd is not None and cwd != workspace and not cwd.is_dir():
        yield at.inside("cwd").problem(f"there is no folder {cwd}", "make it, or correct the path")
    if reach.package is not None:
        if reach.package.registry == "npm":
            yield from _node_js(at.inside("npm"))
        return
    key = "command" if "command" in at.layer.tree.get("servers", {}).get(server.segment, {}) else "docker"
    try:
        executable = Path(program(reach.command, child_environment(_without_reserved(reach.env), os.environ), None))
    except ChildStartFailed as failed:
        what, _, remedy = str(failed).partition("; ")
        yield at.inside(key).problem(what, remedy or None)
        return
    if not executable.is_file():
        yield at.inside(key).problem(f"there is no program {executable}", "install it, or correct the path")
    elif not os.access(executable, os.X_OK):
        yield at.inside(key).problem(f"{executable} is not executable", "chmod +x it, or name its interpreter first")
    script = missing_script(reach.command, cwd)
    if script is not None:
        yield at.inside(key).problem(
            f"there is no script {script}", "relative paths start in cwd, which is the workspace unless given"
        )


def _without_reserved(env: dict[str, str]) -> dict[str, str]:
    """Said already, where the configuration was read."""
    return {name: value for name, value in env.items() if not name.startswith(RESERVED_PREFIX)}


def _node_js(at: At) -> Iterator[Problem]:
    missing = [name for name in ("node", "npm") if which(name) is None]
    if missing:
        verb = "are" if len(missing) > 1 else "is"
        remedy = "install Node.js 20 or newer (nodejs.org), which brings both"
        yield at.problem(f"{' and '.join(missing)} {verb} not on the PATH", remedy)
