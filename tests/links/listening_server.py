"""A 2026-07-28 server that is slow, partial or unwilling about `subscriptions/listen`; and with everything `raw.py all`
offers.

    python listening.py [--http PORT]

What it does is in the resources that are asked for:
    raw://item/held-NAME       it listens and acknowledges when the tool `open` {gate: NAME} is called
    raw://item/mute-...        it listens and never acknowledges
    raw://item/unknown-...     it acknowledges without this one
    raw://item/refused-...     it refuses the whole request
    raw://item/short-...       it ends the request before it acknowledges
`tally` says how many listens came, which wait at a gate, and what the open ones listen to.
"""

import argparse
import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path

SERVERS = Path(__file__).resolve().parents[1] / "servers"
if __name__ == "__main__":
    sys.path.insert(0, str(SERVERS))


def command() -> list[str]:
    return [sys.executable, str(Path(__file__).resolve())]


def build(options: Namespace):  # type: ignore[no-untyped-def]
    from rawserver.features import ALL, FEATURES, structured, text_result
    from rawserver.server import META, Exchange, Refusal, Server
    from rawserver.text import members, obj

    server = Server("modern", name="listening")
    for feature in ALL:
        FEATURES[feature](server, options)
    gates: dict[str, asyncio.Event] = {}
    held: list[str] = []
    listens = 0

    def gate(name: str) -> asyncio.Event:
        return gates.setdefault(name, asyncio.Event())

    async def listen(exchange: Exchange) -> str:
        nonlocal listens
        listens += 1
        wanted = members(exchange.message.params["notifications"])
        uris: list[str] = json.loads(wanted.get("resourceSubscriptions", "[]"))
        if any("/refused-" in uri for uri in uris):
            raise Refusal(-32602, "no such resource", '{"why":"é"}')
        for uri in uris:
            if "/held-" in uri:
                held.append(uri)
                await gate(uri.rpartition("held-")[2]).wait()
                held.remove(uri)
        over = asyncio.Event()
        key = exchange.message.id or ""
        tag = ("_meta", obj([(META + "subscriptionId", key)]))
        if any("/short-" in uri for uri in uris):
            return obj([tag])
        server.listeners[key] = (exchange, wanted, over)
        try:
            if not any("/mute-" in uri for uri in uris):
                told = {**wanted, "resourceSubscriptions": json.dumps([u for u in uris if "/unknown-" not in u])}
                body = obj([tag, ("notifications", obj(told.items()))])
                await exchange.notify("notifications/subscriptions/acknowledged", body)
            await over.wait()
            return obj([tag])
        finally:
            server.listeners.pop(key, None)

    async def open_gate(exchange: Exchange, arguments: str) -> str:
        gate(json.loads(members(arguments)["gate"])).set()
        return text_result("open")

    async def tally(exchange: Exchange, arguments: str) -> str:
        filters = [json.loads(wanted.get("resourceSubscriptions", "[]")) for _, wanted, _ in server.listeners.values()]
        return structured(json.dumps({"listens": listens, "held": held, "open": filters}))

    server.methods["subscriptions/listen"] = listen
    server.tool("open", open_gate)
    server.tool("tally", tally)
    return server


async def run(options: Namespace) -> None:
    from rawserver import http, stdio

    server = build(options)
    if options.http is None:
        await stdio.serve(server)
    else:
        await http.serve(http.HttpPipe(server, token=None, always_stream=False, forget_after=None), options.http)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--http", type=int, metavar="PORT")
    try:
        asyncio.run(run(parser.parse_args()))
    except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        pass
