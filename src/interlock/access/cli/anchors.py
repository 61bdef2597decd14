"""interlock access anchor"""

from pathlib import Path
from typing import Annotated

import typer

from interlock.cli.command import Invocation, verb
from interlock.cli.terminal.errors import BadUsage, Refused


def register(app: typer.Typer) -> None:
    verb(
        app,
        "anchor",
        examples="""
        interlock access anchor
        interlock access anchor --speaks-for edge01.example.com
        interlock access anchor --key leaf.key --name leaf --speaks-for leaf.example
        """,
    )(anchor)


def anchor(
    invocation: Invocation,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FILE", help="A subserver's private key instead of the node's."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="What the parent calls it.", show_default=False)
    ] = None,
    speaks_for: Annotated[
        list[str] | None,
        typer.Option("--speaks-for", metavar="DNS", help="A name it may prove; may be repeated.", show_default=False),
    ] = None,
) -> None:
    """Print the [[anchor]] to paste at a parent.

    With it the parent takes our signature as proof of the authority we register with. The private key is made on first
    use and stays here: node.key in the data folder, or the file that --key names.
    """
    from interlock.ax.protocol.registration.authority import maybe_authority
    from interlock.config.toml_text import toml_text
    from interlock.core.node_identity import NODE_KEY
    from interlock.crypto.jose.public_key import written
    from interlock.crypto.keys.signing import make_signing_key
    from interlock.net.protocol.dns_name import maybe_dns_name
    from interlock.store.ports import StoreError

    path = Path(key).expanduser() if key is not None else invocation.data_folder / NODE_KEY
    names = speaks_for or []
    if key is None:
        plan = invocation.loaded.plan
        names = names or [parent.authority for parent in plan.ax.parents if parent.authority is not None]
        name = name or next((parent.segment for parent in plan.ax.parents), plan.node.name)
    proved = [maybe_authority(one) or maybe_dns_name(one) for one in dict.fromkeys(names)]
    if None in proved:
        raise BadUsage("usage", "--speaks-for takes a DNS name such as edge01.example.com, no wildcard and no address")
    if not proved:
        raise BadUsage(
            "usage", "there is no name to speak for", hint="--speaks-for NAME, or give a parent its 'authority'"
        )
    made = not path.exists()
    try:
        public = make_signing_key(path).public
    except StoreError as refused:
        raise Refused("key_unusable", str(refused)) from None
    entry = {"name": name or path.stem, "key": written(public), "speaks_for": list(dict.fromkeys(proved))}
    out = invocation.out
    if out.as_json:
        out.json({"anchor": entry, "kid": public.kid, "file": str(path.absolute()), "made": made})
        return
    out.line("[[anchor]]")
    for word, value in entry.items():
        out.line(f"{word} = {toml_text(value)}")
    out.remark(f"{'made' if made else 'used'} the private key {path}; it stays here")
    out.remark("paste the lines into interlock.toml of the parent; we sign at each registration with an `authority`")
