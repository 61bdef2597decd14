"""interlock access key"""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interlock.approvals.cli.passphrases import FromDescriptor
from interlock.cli.command import Invocation, verb
from interlock.cli.terminal.errors import BadUsage, Unreachable

if TYPE_CHECKING:
    from interlock.approvals.cli.operator_keys import OperatorKeys
    from interlock.cli.client.operator import Answer


def register(app: typer.Typer) -> None:
    verb(
        app,
        "key",
        examples="""
        interlock access key ada >> interlock.toml
        interlock access key ada --approves 'files.*'
        interlock access key ada --show
        interlock access key ada --revoke
        """,
    )(key)


def key(
    invocation: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is.")],
    *,
    approves: Annotated[
        list[str] | None,
        typer.Option("--approves", metavar="GLOB", help="Tools it may approve; may be repeated.  [default: *]"),
    ] = None,
    kind: Annotated[Literal["ed25519", "es256"], typer.Option("--kind", help="What kind of key to make.")] = "ed25519",
    show: Annotated[bool, typer.Option("--show", help="Print what is there, make nothing.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take it back at the node, and remove it here.")] = False,
    no_passphrase: Annotated[
        bool, typer.Option("--no-passphrase", help="Every program that can read the file can approve.")
    ] = False,
    passphrase_fd: FromDescriptor = None,
) -> None:
    """Make an operator's key and print its [[anchor]].

    The node believes the key once these lines are in its interlock.toml. The private half stays here.
    """
    from interlock.approvals.cli.operator_keys import OperatorKeys
    from interlock.approvals.cli.passphrases import choose_passphrase

    if show and revoke:
        raise BadUsage("usage", "--show and --revoke do not go together", hint="interlock access key --help")
    keys = OperatorKeys()
    if revoke:
        _revoke(invocation, keys, name)
        return
    if show:
        public = keys.maybe_public(name)
    else:
        public = keys.make(name, kind, None if no_passphrase else lambda: choose_passphrase(name, passphrase_fd))
    if public is None:
        raise keys.unknown(name)
    _print(invocation, keys, name, public, approves or ["*"], made=not show)


def _print(
    invocation: Invocation, keys: "OperatorKeys", name: str, public: str, approves: list[str], *, made: bool
) -> None:
    from interlock.approvals.cli.operator_keys import anchor_lines

    out = invocation.out
    file = keys.file(name)
    if out.as_json:
        out.json({"anchor": {"name": name, "key": public, "approves": approves}, "file": str(file), "made": made})
        return
    for line in anchor_lines(name, public, approves):
        out.line(line)
    out.remark(f"{'made' if made else 'used'} the private key {file}; it stays here")
    out.remark(
        "the lines above belong into interlock.toml of the node, where it is enrolled first: interlock approvals"
    )


def _revoke(invocation: Invocation, keys: "OperatorKeys", name: str) -> None:
    """At the node first: a key that is gone here and still believed there would be the wrong half done."""
    ref = name
    if (public := keys.maybe_public(name)) is not None:
        from interlock.crypto.jose.jwks import thumbprint
        from interlock.crypto.jose.public_key import read_key_untrusted

        ref = thumbprint(read_key_untrusted(public)[0])
    try:
        answer = invocation.node.delete("keys", ref)
    except Unreachable as away:
        answer = _revoke_offline(invocation, away, ref)
    removed = keys.remove(name)
    out = invocation.out
    if out.as_json:
        out.json({**answer.value, "removed": str(keys.file(name)) if removed else None})
        return
    from interlock.approvals.api import RevokedKeys

    done = answer.as_(RevokedKeys)
    for one in done.revoked:
        out.line(f"revoked {one}")
    for one in done.voided:
        out.line(f"what it had approved is void: {one}")
    if removed:
        out.line(f"removed {keys.file(name)}")
    out.remark(f"take the [[anchor]] {name} out of interlock.toml; it proves nothing any more")


def _revoke_offline(invocation: Invocation, away: Unreachable, ref: str) -> "Answer":
    if invocation.remote_url is not None or away.error != "not_running":
        raise away
    from interlock.cli.client.offline_keys import revoke_stored

    return revoke_stored(invocation.loaded.plan, invocation.data_folder, ref)
