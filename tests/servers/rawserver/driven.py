"""Tools for contracts: what they take and give is said in their schemas, and a call says what is to happen."""

import asyncio
import json
import os
from argparse import Namespace

from .server import Exchange, InputRequired, Refusal, Server
from .text import array, members, obj, string

_STRING = '{"type":"string"}'
_OPEN = '"additionalProperties":true'


def driven(server: Server, options: Namespace) -> None:
    """`keep` returns the arguments it got; `play` does what its argument `act` says, once for each of `acts` in turn.

    An act: {"result": CallToolResult}, {"raw": its JSON text}, {"error": {code, message}}, {"wait": true},
    {"exit": code}, {"kind": resultType}, {"ask": {method, params}}, {"progress": steps}.
    `played` says how often `play` was called.
    """
    times: dict[str, int] = {}

    async def keep(exchange: Exchange, arguments: str) -> str:
        return obj([("content", array([text(arguments)])), ("structuredContent", obj([("got", arguments)]))])

    async def play(exchange: Exchange, arguments: str) -> str:
        given = json.loads(arguments)
        label = given.get("label", "")
        turn = times[label] = times.get(label, 0) + 1
        acts = given.get("acts") or [given.get("act", {})]
        act = acts[min(turn, len(acts)) - 1]
        if "progress" in act:
            token = exchange.message.meta.get("progressToken")
            for step in range(act["progress"] if token is not None else 0):
                params = obj([("progressToken", token or "null"), ("progress", str(step + 1))])
                await exchange.notify("notifications/progress", params)
        if "exit" in act:
            os._exit(act["exit"])
        if "wait" in act:
            await asyncio.Event().wait()
        if "raw" in act:
            return str(act["raw"])
        if "error" in act:
            raise Refusal(act["error"]["code"], act["error"]["message"])
        state = exchange.message.params.get("requestState", "null")
        if "ask" in act and exchange.era == "legacy":
            state = await exchange.ask(act["ask"]["method"], json.dumps(act["ask"]["params"]))
        elif "ask" in act and "inputResponses" not in exchange.message.params:
            asked = [("one", json.dumps(act["ask"]))]
            return InputRequired(obj([("inputRequests", obj(asked)), ("requestState", string(f"state of {label}"))]))
        if "kind" in act:
            return obj([("resultType", string(act["kind"])), ("content", "[]")])
        done = obj([("content", "[]"), ("structuredContent", obj([("done", string(label)), ("state", state)]))])
        return json.dumps(act["result"]) if "result" in act else done

    async def played(exchange: Exchange, arguments: str) -> str:
        return obj([("content", "[]"), ("structuredContent", json.dumps(times))])

    async def words(exchange: Exchange, arguments: str) -> str:
        return obj([("content", array([text(json.loads(members(arguments).get("say", '"words"')))]))])

    named = f'"path":{_STRING},"text":{_STRING},"tenant":{_STRING},"uri":{{"type":"string","format":"uri"}}'
    server.tool(
        "keep",
        keep,
        f'"description":"POISON","inputSchema":{{"type":"object","properties":{{{named}}},{_OPEN}}},'
        '"outputSchema":{"type":"object","properties":{"got":{"type":"object"}},"required":["got"]}',
    )
    acts = '"act":{"type":"object"},"acts":{"type":"array","items":{"type":"object"}},"label":{"type":"string"}'
    server.tool("play", play, f'"inputSchema":{{"type":"object","properties":{{{acts}}},{_OPEN}}}')
    server.tool("played", played)
    server.tool("words", words, f'"inputSchema":{{"type":"object","properties":{{"say":{_STRING}}}}}')


def text(said: str) -> str:
    return obj([("type", '"text"'), ("text", string(said))])
