"""A server that asks its client in every way a server may; of either era, and with everything `raw.py all` offers.

    python asking.py --era legacy|modern [--http PORT] [--name NAME]

The tool `interview` {label, steps}, the prompt `interview` {label, steps as JSON text} and the resources ask://LABEL
(one question) take the steps one after the other and answer with what they were told. A step is one of
    {"ask": {KEY: {method, params?}}}    all at once; modern: one round, with "state": false without a requestState
    {"state": true}                      modern: a round that asks nothing and only wants its state back
    {"send": {...}}                      legacy: as `ask`, without waiting for the answers
    {"take_back": true}                  legacy: what was sent is no longer wanted
    {"gate": NAME}                       wait until the tool `open` {gate} is called
    {"progress": N}, {"log": LEVEL}      a notice
    {"fail": {code, message, data?}}     end with this error
    {"spoil": TEXT}                      the last: the tool ends with a result that says so, isError
    {"linger": NAME}                     modern, HTTP: the stream of this round stays open until `open` {gate}
`hold` {level}: logging/setLevel to that level waits until `open` {gate: LEVEL}; `tally` names the levels that wait.
`tally` says how often each label was begun, finished and cancelled, and which answers came to questions of `send`.
`point` answers with a link to own://NAME, a resource no other server has.
"""

import argparse
import asyncio
import json
import os
import sys
from argparse import Namespace
from collections import Counter
from pathlib import Path

SERVERS = Path(__file__).resolve().parents[1] / "servers"
if __name__ == "__main__":
    sys.path[:0] = [str(SERVERS), str(SERVERS.parents[1])]

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}
WHO = {"method": "elicitation/create", "params": {"message": "Who?", "requestedSchema": NAME}}
PAGE = {"mode": "url", "elicitationId": "e-1", "url": "https://example.com/sign-in?x=1", "message": "Sign in"}
ROOMY = '"inputSchema":{"type":"object"},"outputSchema":{"type":"array","items":{"type":"integer"}}'


def command(era: str, *options: str) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "--era", era, *options]


def build(options: Namespace):  # type: ignore[no-untyped-def]
    from rawserver.features import ALL, FEATURES, structured, text_result
    from rawserver.server import Exchange, InputRequired, Refusal, Server
    from rawserver.text import array, members, obj, string
    from tests.support.json_cutting import elements

    server = Server(options.era, name=options.name)
    for feature in ALL:
        FEATURES[feature](server, options)
    begun: Counter[str] = Counter()
    finished: Counter[str] = Counter()
    cancelled: Counter[str] = Counter()
    late: list[str] = []  # answers nobody waited for
    gates: dict[str, asyncio.Event] = {}
    states: dict[str, tuple[int, list[str]]] = {}  # a state as it was written -> the next step, and the answers so far
    visited: set[str] = set()
    held: set[str] = set()
    waiting: list[str] = []
    own = f"own://{options.name}"

    def gate(name: str) -> asyncio.Event:
        return gates.setdefault(name, asyncio.Event())

    async def ask(exchange: Exchange, question: str) -> tuple[str, asyncio.Future[str]]:
        given = members(question)
        server.asked += 1
        ask_id = string(f"ask-{server.asked}")
        answer = exchange.session.asked[ask_id] = asyncio.get_running_loop().create_future()
        pairs = [("jsonrpc", '"2.0"'), ("id", ask_id), ("method", given["method"])]
        pairs += [("params", given["params"])] if "params" in given else []
        await exchange.channel.send(obj(pairs).encode())
        return ask_id, answer

    async def ask_all(exchange: Exchange, questions: str) -> str:
        asked = {key: await ask(exchange, question) for key, question in members(questions).items()}
        try:
            return obj([(key, await answer) for key, (_, answer) in asked.items()])
        finally:
            for ask_id, _ in asked.values():
                exchange.session.asked.pop(ask_id, None)

    async def send_all(exchange: Exchange, questions: str) -> list[str]:
        sent = []
        for question in members(questions).values():
            ask_id, answer = await ask(exchange, question)
            answer.add_done_callback(lambda done: late.append(done.result()))
            sent.append(ask_id)
        return sent

    async def take_back(exchange: Exchange, sent: list[str]) -> None:
        for ask_id in sent:
            exchange.session.asked.pop(ask_id, None)
            params = obj([("requestId", ask_id), ("reason", '"no longer needed"')])
            await exchange.notify("notifications/cancelled", params)

    def state_after(step: int, answers: list[str]) -> str:
        """Written as no encoder would write it: whoever changes a byte is found out."""
        text = f'"st\\u00e4te é\\/{len(states)}"'
        states[text] = (step, answers)
        return text

    def where(exchange: Exchange) -> tuple[int, list[str]]:
        """Modern: which step comes next."""
        given = exchange.message.params
        state, responses = given.get("requestState"), given.get("inputResponses")
        if state is None:
            return (0, []) if responses is None else (1, [responses])
        if state not in states:
            raise Refusal(-32602, "this is not the requestState it was")
        step, answers = states[state]
        return step, answers if responses is None else [*answers, responses]

    async def notice(exchange: Exchange, step: dict[str, str]) -> None:
        token = exchange.message.meta.get("progressToken")
        if "progress" in step and token is not None:
            await exchange.notify(
                "notifications/progress", obj([("progressToken", token), ("progress", step["progress"])])
            )
        if "log" in step:
            await exchange.log(json.loads(step["log"]), '"in mid-call"')
        if "fail" in step:
            error = members(step["fail"])
            raise Refusal(int(error["code"]), json.loads(error["message"]), error.get("data"))
        if "linger" in step:
            linger(exchange, json.loads(step["linger"]))
        if "gate" in step:
            await gate(json.loads(step["gate"])).wait()

    def linger(exchange: Exchange, name: str) -> None:
        async def finish(messages: list[bytes], status: int) -> None:
            for message in messages:
                await exchange.channel.send(message)
            await gate(name).wait()
            await exchange.channel.end()

        exchange.channel.finish = finish

    async def go_on(exchange: Exchange, steps: list[str]) -> str:
        done, answers = (0, []) if exchange.era == "legacy" else where(exchange)
        sent: list[str] = []
        for number, text in enumerate(steps[done:], done + 1):
            step = members(text)
            await notice(exchange, step)
            questions = step.get("ask")
            if exchange.era == "legacy":
                if questions is not None:
                    answers.append(await ask_all(exchange, questions))
                if "send" in step:
                    sent += await send_all(exchange, step["send"])
                if "take_back" in step:
                    await take_back(exchange, sent)
            elif questions is not None or step.get("state") == "true":
                pairs = [] if questions is None else [("inputRequests", questions)]
                if step.get("state") != "false":
                    pairs.append(("requestState", state_after(number, answers)))
                return InputRequired(obj(pairs))
        return obj([("answers", array(answers))])

    async def interview(exchange: Exchange, label: str, steps: str) -> str:
        begun[label] += 1
        try:
            told = await go_on(exchange, elements(steps))
        except asyncio.CancelledError:
            cancelled[label] += 1
            raise
        if not isinstance(told, InputRequired):
            finished[label] += 1
        return told

    async def interview_tool(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        told = await interview(exchange, json.loads(given.get("label", '""')), given["steps"])
        if isinstance(told, InputRequired):
            return told
        words = members(elements(given["steps"])[-1]).get("spoil")
        if words is not None:
            return obj([("isError", "true"), ("content", array([obj([("type", '"text"'), ("text", words)])]))])
        return structured(told)

    async def get_prompt(exchange: Exchange) -> str:
        if exchange.param("name") != "interview":
            return await plain_prompt(exchange)
        given = json.loads(exchange.message.params["arguments"])
        told = await interview(exchange, given["label"], given["steps"])
        if isinstance(told, InputRequired):
            return told
        return obj([("messages", array([f'{{"role":"user","content":{{"type":"text","text":{string(told)}}}}}']))])

    async def read(exchange: Exchange) -> str:
        uri = exchange.param("uri")
        if uri == own:
            return obj([("contents", array([obj([("uri", string(uri)), ("text", string(options.name))])]))])
        if not uri.startswith("ask://"):
            return await plain_read(exchange)
        told = await interview(exchange, uri.removeprefix("ask://"), json.dumps([{"ask": {"who": WHO}}]))
        if isinstance(told, InputRequired):
            return told
        return obj([("contents", array([obj([("uri", string(uri)), ("text", string(told))])]))])

    async def complete(exchange: Exchange) -> str:
        """A completion that asks, which no revision allows a modern server."""
        if '"ask"' not in exchange.message.params.get("argument", ""):
            return await plain_complete(exchange)
        if exchange.era == "modern":
            return InputRequired(obj([("inputRequests", json.dumps({"who": WHO}))]))
        told = json.loads(await ask_all(exchange, json.dumps({"who": WHO})))
        return obj([("completion", obj([("values", array([string(json.dumps(told["who"]))]))]))])

    async def open_gate(exchange: Exchange, arguments: str) -> str:
        gate(json.loads(members(arguments)["gate"])).set()
        return text_result("open")

    async def hold(exchange: Exchange, arguments: str) -> str:
        held.add(json.loads(members(arguments)["level"]))
        return text_result("held")

    async def set_level(exchange: Exchange) -> str:
        level = exchange.param("level")
        if level in held:
            waiting.append(level)
            await gate(level).wait()
            waiting.remove(level)
        return await plain_set_level(exchange)

    async def tally(exchange: Exchange, arguments: str) -> str:
        counts = {"begun": begun, "finished": finished, "cancelled": cancelled, "waiting": waiting}
        pairs = [(name, json.dumps(count)) for name, count in counts.items()]
        return structured(obj([*pairs, ("late", array(late))]))

    async def own_meta(exchange: Exchange, arguments: str) -> str:
        return structured(obj([("params", obj(exchange.message.params.items()))]))

    async def numbers(exchange: Exchange, arguments: str) -> str:
        return '{"content":[{"type":"text","text":"[1, 2, 3]"}],"structuredContent":[1,2,3]}'

    async def visit(exchange: Exchange, arguments: str) -> str:
        label = json.loads(members(arguments)["label"])
        begun[label] += 1
        if label not in visited:
            visited.add(label)
            raise Refusal(-32042, "Sign in first", json.dumps({"elicitations": [PAGE]}))
        return structured(obj([("params", obj(exchange.message.params.items()))]))

    async def point(exchange: Exchange, arguments: str) -> str:
        link = obj([("type", '"resource_link"'), ("uri", string(own)), ("name", '"own"')])
        return obj([("content", array([link]))])

    async def die(exchange: Exchange, arguments: str) -> str:
        os._exit(7)

    plain_prompt, plain_read = server.methods["prompts/get"], server.methods["resources/read"]
    plain_complete, plain_set_level = server.methods["completion/complete"], server.methods["logging/setLevel"]
    server.methods["logging/setLevel"] = set_level
    server.methods |= {"prompts/get": get_prompt, "resources/read": read, "completion/complete": complete}
    server.prompts["interview"] = '{"name":"interview","arguments":[{"name":"label"},{"name":"steps"}]}'
    server.templates["ask://{label}"] = '{"uriTemplate":"ask://{label}","name":"asks"}'
    server.resources[own] = obj([("uri", string(own)), ("name", '"own"')])
    server.tool("interview", interview_tool)
    server.tool("impatient", interview_tool)
    server.tool("open", open_gate)
    server.tool("tally", tally)
    server.tool("hold", hold)
    server.tool("own_params", own_meta)
    server.tool("point", point)
    server.tool("die", die)
    if options.era == "modern":
        server.tool("numbers", numbers, ROOMY)
    else:
        server.tool("visit", visit)
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
    parser.add_argument("--era", choices=("legacy", "modern"), required=True)
    parser.add_argument("--http", type=int, metavar="PORT")
    parser.add_argument("--name", default="asking")
    try:
        asyncio.run(run(parser.parse_args()))
    except (KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        pass
