"""Tasks of both eras: `tasks/*` of 2025-11-25, and the extension `io.modelcontextprotocol/tasks` of 2026-07-28.

Ids are task-1, task-2, ... in every such server, so that those of two servers are the same. Nothing happens by itself:
a test says when a task ends, asks or speaks.
"""

import asyncio
import json
import os
from argparse import Namespace
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from .server import META, Channel, Exchange, MadeTask, Refusal, Server, Session, notification
from .text import array, members, obj, prepend, string

EXTENSION = META + "tasks"
RELATED = META + "related-task"
MADE_AT = "2026-01-02T03:04:05Z"
NEEDED = json.dumps({"requiredCapabilities": {"extensions": {EXTENSION: {}}}})
TERMINAL = ("completed", "failed", "cancelled")
SUPPORT = '"inputSchema":{"type":"object"},"execution":{"taskSupport":"%s","x-more":{"n":1.0}}'


@dataclass
class Task:
    id: str
    era: str
    session: Session
    arguments: dict[str, str]
    token: str | None  # of progress, as it was written
    status: str = "working"
    outcome: str = '{"content":[]}'  # the tool's result, or an error
    asked: dict[str, str] = field(default_factory=dict)  # modern: key -> request
    answers: list[str] = field(default_factory=list)
    waiting: list[Channel] = field(default_factory=list)  # tasks/result under way
    over: asyncio.Event = field(default_factory=asyncio.Event)
    agreed: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def state(self) -> list[tuple[str, str]]:
        """As it is written here, so that whoever changes a byte is found out."""
        ttl, poll = ("ttl", "pollInterval") if self.era == "legacy" else ("ttlMs", "pollIntervalMs")
        return [
            ("x-before", '{ "z":1.0 }'),
            ("taskId", string(self.id)),
            ("status", string(self.status)),
            ("createdAt", string(MADE_AT)),
            ("lastUpdatedAt", string(MADE_AT)),
            (ttl, self.arguments.get("ttl", "60000")),
            (poll, self.arguments.get("poll", "20")),
            ("statusMessage", '"\\u00e9 it is"'),
        ]

    @property
    def detail(self) -> list[tuple[str, str]]:
        """Modern: the state with what belongs to the status."""
        more = {"completed": ("result", self.outcome), "failed": ("error", self.outcome)}
        if self.status == "input_required":
            return [*self.state, ("inputRequests", obj(self.asked.items()))]
        return [*self.state, more[self.status]] if self.status in more else self.state

    @property
    def related(self) -> str:
        return obj([(RELATED, obj([("taskId", string(self.id)), ("x-own", "[ 1 ]")]))])


def tasks(server: Server, options: Namespace) -> None:
    """`job` and `must` become tasks; `end`, `news`, `question`, `book` and `client_task` drive and look at them."""
    made: dict[str, Task] = {}
    calls: list[str] = []  # "method id" of every request about a task
    hesitating: list[str] = []  # tasks whose listeners wait for `agree`
    counter = [0]
    server.capabilities["tools"] = '{"listChanged":true}'
    if server.serves("legacy"):
        server.capabilities["tasks"] = '{"list":{},"cancel":{},"requests":{"tools":{"call":{}}}}'
    if server.serves("modern"):
        server.capabilities["extensions"] = obj([(EXTENSION, "{}")])

    def declared(exchange: Exchange) -> bool:
        said = json.loads(exchange.message.meta.get(META + "clientCapabilities", "{}"))
        return EXTENSION in said.get("extensions", {})

    def wanted(exchange: Exchange) -> bool:
        return declared(exchange) if exchange.era == "modern" else "task" in exchange.message.params

    def begin(exchange: Exchange, arguments: str) -> str:
        given = members(arguments)
        if "answer" in given:  # whatever a test wants to have answered
            return MadeTask(given["answer"]) if exchange.era == "modern" else given["answer"]
        counter[0] += 1
        task_id = json.loads(given.get("id", string(f"task-{counter[0]}")))
        token = exchange.message.meta.get("progressToken")
        task = made[task_id] = Task(task_id, exchange.era, exchange.session, given, token)
        if "outcome" in given:
            settle(task, "completed", given["outcome"])
        if exchange.era == "modern":
            return MadeTask(obj(task.state))
        return obj([("task", obj(task.state)), ("_meta", '{"com.example/k":{ "z":1 }}')])

    def settle(task: Task, status: str, outcome: str) -> None:
        task.status, task.outcome = status, outcome
        task.over.set()

    async def job(exchange: Exchange, arguments: str) -> str:
        if wanted(exchange) or "unasked" in members(arguments):
            return begin(exchange, arguments)
        return obj([("content", "[]"), ("structuredContent", obj([("plain", obj(exchange.message.params.items()))]))])

    async def must(exchange: Exchange, arguments: str) -> str:
        if wanted(exchange):
            return begin(exchange, arguments)
        if exchange.era == "modern":
            raise Refusal(-32021, "Missing required client capability", NEEDED)
        raise Refusal(-32601, "Task augmentation required")

    def meant(exchange: Exchange) -> Task:
        calls.append(f"{exchange.method} {exchange.param('taskId')}")
        if exchange.era == "modern" and not declared(exchange):
            raise Refusal(-32021, "Missing required client capability", NEEDED)
        task = made.get(exchange.param("taskId"))
        if task is None or task.era != exchange.era:
            raise Refusal(-32602, "Failed to retrieve task: Task not found", '{"x-kept":{ "n":1.0 }}')
        return task

    async def get(exchange: Exchange) -> str:
        task = meant(exchange)
        if "get" in task.arguments:
            return task.arguments["get"]
        return obj(task.state if exchange.era == "legacy" else task.detail)

    async def cancel(exchange: Exchange) -> str:
        task = meant(exchange)
        if exchange.era == "legacy" and task.status in TERMINAL:
            raise Refusal(-32602, f"Cannot cancel task: already in terminal status '{task.status}'")
        if task.status not in TERMINAL:
            settle(task, "cancelled", '{"code":-32000,"message":"cancelled"}')
        return obj(task.state) if exchange.era == "legacy" else "{}"

    async def result(exchange: Exchange) -> str:
        task = meant(exchange)
        task.waiting.append(exchange.channel)
        try:
            await task.over.wait()
        finally:
            task.waiting.remove(exchange.channel)
        if task.status == "completed":
            return prepend([("_meta", task.related)], task.outcome)
        error = json.loads(task.outcome)
        raise Refusal(error["code"], error["message"])

    async def update(exchange: Exchange) -> str:
        task = meant(exchange)
        responses = exchange.message.params.get("inputResponses", "{}")
        for key, answer in members(responses).items():
            if task.asked.pop(key, None) is not None:
                task.answers.append(answer)
        if task.status == "input_required" and not task.asked:
            task.status = "working"
        return "{}"

    async def listed(exchange: Exchange) -> str:
        calls.append("tasks/list")
        return obj([("tasks", array(obj(task.state) for task in made.values()))])

    def named(arguments: str) -> tuple[Task, dict[str, str]]:
        given = members(arguments)
        return made[json.loads(given["task"])], given

    async def end(exchange: Exchange, arguments: str) -> str:
        task, given = named(arguments)
        settle(task, json.loads(given.get("status", '"completed"')), given.get("outcome", '{"content":[]}'))
        return '{"content":[]}'

    async def send(task: Task, message: bytes) -> None:
        """Where the client of a task is to hear something."""
        if task.waiting:
            await task.waiting[-1].send(message)
        else:
            task.session.outbox.put_nowait(message)

    async def news(exchange: Exchange, arguments: str) -> str:
        """{task, what: status|progress|log|any}: say something about a task; `any` says `method` and `params`."""
        task, given = named(arguments)
        what = json.loads(given["what"])
        if what == "status" and task.era == "modern":
            for key, (listener, filters, _) in list(server.listeners.items()):
                if task.id in json.loads(filters.get("taskIds", "[]")):
                    tag = ("_meta", obj([(META + "subscriptionId", key)]))
                    await listener.notify("notifications/tasks", obj([tag, *task.detail]))
        elif what == "status":
            await send(task, notification("notifications/tasks/status", obj(task.state)))
        elif what == "progress":
            pairs = [("progressToken", task.token or "0"), ("progress", "1"), ("_meta", task.related)]
            await send(task, notification("notifications/progress", obj(pairs)))
        elif what == "log":
            pairs = [("level", '"error"'), ("data", given.get("data", "1")), ("_meta", task.related)]
            await send(task, notification("notifications/message", obj(pairs)))
        else:
            await send(task, notification(json.loads(given["method"]), given["params"]))
        return '{"content":[]}'

    async def asking(task: Task, given: dict[str, str]) -> str:
        """Legacy: a request of the task to its client, and the answer."""
        server.asked += 1
        ask_id = string(f"task-ask-{server.asked}")
        answer = task.session.asked[ask_id] = asyncio.get_running_loop().create_future()
        params = given.get("params", "{}")
        if given.get("unrelated") != "true":
            params = prepend([("_meta", task.related)], params)
        pairs = [("jsonrpc", '"2.0"'), ("id", ask_id), ("method", given["method"]), ("params", params)]
        task.status = "input_required"
        await send(task, obj(pairs).encode())
        told = await answer
        task.status = "working"
        return told

    running: set[asyncio.Task[None]] = set()

    def in_background(work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        running.add(task)
        task.add_done_callback(running.discard)

    async def question(exchange: Exchange, arguments: str) -> str:
        """{task, method, params, key?}: the task asks its client; the answer is in the `book`."""
        task, given = named(arguments)
        if task.era == "modern":
            task.asked[json.loads(given["key"])] = obj([("method", given["method"]), ("params", given["params"])])
            task.status = "input_required"
            return '{"content":[]}'

        async def ask() -> None:
            task.answers.append(await asking(task, given))

        in_background(ask())
        return '{"content":[]}'

    async def withdraw(exchange: Exchange, arguments: str) -> str:
        """The newest question is taken back."""
        task, _ = named(arguments)
        params = obj([("requestId", string(f"task-ask-{server.asked}")), ("reason", '"found it"')])
        await send(task, notification("notifications/cancelled", params))
        return '{"content":[]}'

    async def book(exchange: Exchange, arguments: str) -> str:
        """Every task with its status and the answers it got, and every request about a task."""
        found = {task.id: {"status": task.status, "answers": task.answers} for task in made.values()}
        heard = [one.text for one in server.received if one.method == "notifications/tasks/status"]
        return obj(
            [
                ("content", "[]"),
                (
                    "structuredContent",
                    json.dumps({"tasks": found, "calls": calls, "heard": heard, "hesitating": hesitating}),
                ),
            ]
        )

    async def client_task(exchange: Exchange, arguments: str) -> str:
        """{method, params, then: [method, ...]}: ask the client as a task, then about the task; all answers."""
        given = members(arguments)
        answers = [await exchange.ask(json.loads(given["method"]), given["params"])]
        kept = json.loads(answers[0]).get("task", {}).get("taskId", "none")
        for method in json.loads(given.get("then", "[]")):
            answers.append(await exchange.ask(method, obj([("taskId", given.get("id", string(kept)))])))
        return obj([("content", "[]"), ("structuredContent", obj([("answers", array(answers))]))])

    async def agree(exchange: Exchange, arguments: str) -> str:
        named(arguments)[0].agreed.set()
        return '{"content":[]}'

    async def greeted(exchange: Exchange, arguments: str) -> str:
        """What the client said of itself in `initialize`."""
        hello = next(one for one in server.received if one.method == "initialize")
        return obj([("content", "[]"), ("structuredContent", obj(hello.params.items()))])

    async def die(exchange: Exchange, arguments: str) -> str:
        os._exit(7)

    plain_listen = server.methods["subscriptions/listen"]

    async def listen(exchange: Exchange) -> str:
        if "taskIds" in exchange.message.params.get("notifications", "{}") and not declared(exchange):
            raise Refusal(-32021, "Missing required client capability", NEEDED)
        filters = members(exchange.message.params.get("notifications", "{}"))
        if "taskIds" in filters:
            if any("unlistenable" in made[one].arguments for one in json.loads(filters["taskIds"]) if one in made):
                raise Refusal(-32602, "not this one")
            for one in json.loads(filters["taskIds"]):
                if one in made and "hesitates" in made[one].arguments:
                    hesitating.append(one)
                    await made[one].agreed.wait()
            shy = {task.id for task in made.values() if "untold" in task.arguments}
            filters["taskIds"] = json.dumps([one for one in json.loads(filters["taskIds"]) if one not in shy])
        exchange.message.params["notifications"] = obj(filters.items())
        return await plain_listen(exchange)

    methods: dict[str, Callable[[Exchange], Awaitable[str]]] = {
        "tasks/get": get,
        "tasks/cancel": cancel,
        "subscriptions/listen": listen,
    }
    if server.era == "modern":
        methods["tasks/update"] = update
    else:
        methods |= {"tasks/result": result, "tasks/list": listed}
    server.methods |= methods
    legacy = server.serves("legacy")
    server.tool("job", job, SUPPORT % "optional" if legacy else '"inputSchema":{"type":"object"}')
    server.tool("must", must, SUPPORT % "required" if legacy else '"inputSchema":{"type":"object"}')
    for handler in (end, news, question, withdraw, book, agree, client_task, greeted, die):
        server.tool(handler.__name__, handler)
