"""Checks for programs, scripts, folders, files and secrets that a configuration needs and this machine lacks.

They are only looked for, nothing is started. The node runs without them and the server in question fails, so each is a
warning, reported at the place where it was written.
"""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from shutil import which
from typing import Final

from msgspec.structs import replace

from interlock.access.api import LIST_TOKENS, Token, Tokens
from interlock.cli.command import Invocation
from interlock.config.effective import masked_text
from interlock.config.load import Loaded, Problem
from interlock.config.plan import ServerPlan, Spawn
from interlock.config.problems import At, quoted_word
from interlock.config.value_types import SECRET_REFERENCE, secret_slug
from interlock.process.child import RESERVED_PREFIX, ChildStartFailed, child_environment, missing_script, program
from interlock.safety.agents import CERTIFICATE, EVERY_CLIENT, LOCAL
from interlock.wire.refusal import Refused

_GLOB: Final = re.compile(r"[*?\[]")


def missing_on_machine(loaded: Loaded) -> Iterator[Problem]:
    """Yield a warning for everything that the configuration names and this machine lacks, such as a program."""
    plan = loaded.plan
    yield from _missing_files(loaded)
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
            problems = _missing_for_server(server, server.reach, at, plan.workspace)
            for problem in (*problems, *_covered_programs(server.reach, at, plan.servers)):
                yield replace(problem, message=masked_text(problem.message, server.secrets))


def _covered_programs(reach: Spawn, at: At, servers: Iterable[ServerPlan]) -> Iterator[Problem]:
    """Yield a problem if a server in a sandbox may write the program of another server."""
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
    """Yield a problem for each secret that the configuration refers to and that is not stored."""
    wanted: dict[tuple[str, str], frozenset[str]] = {}
    for server in loaded.plan.servers:
        if isinstance(server.reach, Spawn):
            texts = [*server.reach.env.values()]
        else:
            texts = [*server.reach.headers.values()]
            if server.reach.auth is not None:
                texts.append(server.reach.auth.client_secret or "")
        wanted["servers", server.segment] = _slugs(*texts)
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


def list_tokens(invocation: Invocation) -> tuple[Token, ...]:
    """Return the tokens of a running node, or those in its data folder. Return no tokens if they cannot be read."""
    from interlock.cli.client.offline import OfflineNode

    try:
        return invocation.node.call(LIST_TOKENS).as_(Tokens).tokens
    except Refused:
        pass
    try:
        plan = invocation.loaded.plan
        if not (plan.data / "store.db").exists():
            return ()
        return OfflineNode(plan, plan.data).call(LIST_TOKENS).as_(Tokens).tokens
    except Refused:
        return ()


def unmatched_principals(loaded: Loaded, tokens: Iterable[Token]) -> Iterator[Problem]:
    """Yield a problem for each pattern in `safety.require` that matches the name of no possible client of the node.

    Of authorization servers and certificates only the beginning of a name is known.
    """
    plan, at = loaded.plan, loaded.written.get(("safety", "require"))
    if at is None:
        return
    names = [LOCAL, *(f"{token.audience}:{token.name}" for token in tokens if token.audience in ("client", "room"))]
    beginnings = [f"client:{issuer.name}/" for issuer in plan.auth.issuers]
    beginnings += [CERTIFICATE] if plan.node.client_ca is not None else []
    for pattern in plan.safety.require:
        literal = _GLOB.split(pattern, 1)[0]
        may_begin = any(each.startswith(literal) or literal.startswith(each) for each in beginnings)
        if pattern != EVERY_CLIENT and not may_begin and not any(fnmatchcase(name, pattern) for name in names):
            hint = f"{EVERY_CLIENT} is every client; interlock access list shows the names of those with tokens"
            yield at.problem(f"'require' in [safety] names {quoted_word(pattern)}, which matches no client", hint)


def _slugs(*texts: str) -> frozenset[str]:
    return frozenset(secret_slug(reference[1]) for text in texts for reference in SECRET_REFERENCE.finditer(text))


def is_sandboxed(server: ServerPlan) -> bool:
    """Return whether the node starts a server in a sandbox. Containers do not count."""
    return isinstance(server.reach, Spawn) and server.reach.sandbox is not None


def no_sandbox() -> str | None:
    """Return the reason why this machine has no sandbox, or None if it has one."""
    from interlock.process.sandbox.host_paths import SandboxFailed
    from interlock.process.sandbox.mounts import bubblewrap

    try:
        bubblewrap()
    except SandboxFailed as failed:
        return str(failed)
    return None


def _missing_files(loaded: Loaded) -> Iterator[Problem]:
    """Yield a problem for each file that the node needs and that does not exist, such as a certificate."""
    plan = loaded.plan
    named: list[tuple[At | None, object]] = [
        (loaded.written.get(("node", key)), getattr(plan.node, key))
        for key in ("tls_cert", "tls_key", "client_ca", "crl")
    ]
    named.append((loaded.written.get(("store", "nats_ca_file")), plan.store.nats_ca_file))
    for index, anchor in enumerate(plan.anchors):
        at = loaded.written.get(("anchor", str(index)))
        if at is not None:
            named += [(at.inside("key"), anchor.key), (at.inside("jwks"), anchor.jwks)]
    above = loaded.written.get(("ax", "parents"))
    if above is not None:
        for index, parent in enumerate(plan.ax.parents):
            at = above.inside(index)
            named += [(at.inside(key), getattr(parent, key)) for key in ("ca_file", "tls_cert", "tls_key")]
    for at, path in named:
        if at is not None and isinstance(path, Path) and not path.is_file():
            yield at.problem(f"there is no file {path}", "the node cannot start without it")


def _missing_for_server(server: ServerPlan, reach: Spawn, at: At, workspace: Path) -> Iterator[Problem]:
    """Yield a problem for everything that one server lacks on this machine: folders, its program, its script, or
    Node.js.
    """
    cwd = reach.cwd
    for index, path in enumerate(reach.sandbox.write if reach.sandbox is not None else ()):
        if not path.exists():
            yield at.inside("files").inside(index).problem(f"there is no {path}", "make it, or correct the path")
    if cwd is not None and cwd != workspace and not cwd.is_dir():
        yield at.inside("cwd").problem(f"there is no folder {cwd}", "make it, or correct the path")
    if reach.package is not None:
        missing = [name for name in ("node", "npm") if reach.package.registry == "npm" and which(name) is None]
        if missing:
            verb = "are" if len(missing) > 1 else "is"
            remedy = "install Node.js 20 or newer (nodejs.org), which brings both"
            yield at.inside("npm").problem(f"{' and '.join(missing)} {verb} not on the PATH", remedy)
        return
    key = "command" if "command" in at.layer.tree.get("servers", {}).get(server.segment, {}) else "docker"
    try:
        # Reserved names were reported where the configuration was read.
        env = {name: value for name, value in reach.env.items() if not name.startswith(RESERVED_PREFIX)}
        executable = Path(program(reach.command, child_environment(env, os.environ), None))
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
