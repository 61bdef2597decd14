"""The tasks extension of 2026-07-28 in the conformance fixture, which the SDK leaves to its users.

A tool that may take long becomes a task for a client that declares the extension, and is answered at once for others.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import HEADER_MISMATCH, INVALID_PARAMS
from pydantic import Field

from mcp import types

from .tools import Json, field_of, form, needs, said, text, tool

EXTENSION = "io.modelcontextprotocol/tasks"
MISSING_CAPABILITY = -32021
REQUIRED = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
TTL_MS = 300_000
POLL_MS = 100

Work = Callable[["Job"], Awaitable[Json]]


class Job:
    """One task."""

    def __init__(self, work: Work) -> None:
        self.id = secrets.token_urlsafe(16)
        self.made = self.updated = datetime.now(UTC)
        self.status = "working"
        self.outcome: Json = {}
        self.asked: Json = {}
        self.answers: Json = {}
        self.news = asyncio.Event()
        self.running = asyncio.create_task(self._run(work))

    def become(self, status: str, **outcome: Any) -> None:
        self.status, self.outcome, self.updated = status, outcome, datetime.now(UTC)

    async def ask(self, **requests: Json) -> Json:
        """The answers to these requests, however many updates they come in."""
        self.asked = dict(requests)
        self.become("input_required")
        while self.asked:
            self.news.clear()
            await self.news.wait()
        self.become("working")
        return self.answers

    def answer(self, responses: Json) -> None:
        for key in [key for key in responses if key in self.asked]:
            del self.asked[key]
            self.answers[key] = responses[key]
        self.news.set()

    async def _run(self, work: Work) -> None:
        try:
            self.become("completed", result=await work(self))
        except asyncio.CancelledError:
            self.become("cancelled")
        except MCPError as error:
            self.become("failed", error={"code": error.error.code, "message": error.error.message})

    @property
    def state(self) -> Json:
        return {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.made.isoformat(),
            "lastUpdatedAt": self.updated.isoformat(),
            "ttlMs": TTL_MS,
            "pollIntervalMs": POLL_MS,
        }

    @property
    def detail(self) -> Json:
        waiting = {"inputRequests": self.asked} if self.status == "input_required" else {}
        return {**self.state, **self.outcome, **waiting}


JOBS: dict[str, Job] = {}


def takes_tasks(ctx: Any) -> bool:
    capabilities = ctx.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


async def as_task(ctx: Any, work: Work, *, otherwise: Json | None = None) -> Json:
    """A task; for a client that takes none, what is said otherwise, or the refusal where that is nothing."""
    if takes_tasks(ctx):
        job = Job(work)
        JOBS[job.id] = job
        return {"resultType": "task", **job.state}
    if otherwise is None:
        raise MCPError(MISSING_CAPABILITY, "Missing required client capability", REQUIRED)
    return otherwise


class TaskParams(types.RequestParams):
    task_id: str
    input_responses: dict[str, Any] = Field(default_factory=dict)


def meant(ctx: Any, params: TaskParams) -> Job:
    if not takes_tasks(ctx):
        raise MCPError(MISSING_CAPABILITY, "Missing required client capability", REQUIRED)
    if ctx.request is not None and ctx.request.headers.get("mcp-name") != params.task_id:
        raise MCPError(HEADER_MISMATCH, "Mcp-Name does not repeat params.taskId")
    if params.task_id not in JOBS:
        raise MCPError(INVALID_PARAMS, "Failed to retrieve task: Task not found")
    return JOBS[params.task_id]


async def get(ctx: Any, params: TaskParams) -> Json:
    return {"resultType": "complete", **meant(ctx, params).detail}


async def update(ctx: Any, params: TaskParams) -> Json:
    meant(ctx, params).answer(params.input_responses)
    return {"resultType": "complete"}


async def cancel(ctx: Any, params: TaskParams) -> Json:
    meant(ctx, params).running.cancel()
    return {"resultType": "complete"}


METHODS = {"tasks/get": get, "tasks/update": update, "tasks/cancel": cancel}


# The tools the suite asks for


@tool("Greets, at once.", properties={"name": {"type": "string"}})
async def greet(ctx: Any, given: Json) -> Json:
    return said(text(f"Hello, {given.get('name', 'nobody')}!"))


@tool("Takes so many seconds.", properties={"seconds": {"type": "number"}, "label": {"type": "string"}})
async def slow_compute(ctx: Any, given: Json) -> Json:
    computed = said(text(f"{given.get('label', '')} took {given.get('seconds', 0)} s"))

    async def work(job: Job) -> Json:
        await asyncio.sleep(given.get("seconds", 0))
        return computed

    return await as_task(ctx, work, otherwise=computed)


@tool("Fails after a while, and only as a task.")
async def failing_job(ctx: Any, given: Json) -> Json:
    async def work(job: Job) -> Json:
        await asyncio.sleep(0.2)
        return {**said(text("It failed.")), "isError": True}

    return await as_task(ctx, work)


@tool("Ends in an error of the protocol.")
async def protocol_error_job(ctx: Any, given: Json) -> Json:
    async def work(job: Job) -> Json:
        await asyncio.sleep(0.2)
        raise MCPError(types.INTERNAL_ERROR, "It broke.")

    return await as_task(ctx, work)


@tool("Deletes once that is confirmed.", properties={"filename": {"type": "string"}})
async def confirm_delete(ctx: Any, given: Json) -> Json:
    async def work(job: Job) -> Json:
        await job.ask(confirm=form(f"Delete {given.get('filename')}?", confirm={"type": "boolean"}))
        return said(text("Deleted."))

    return await as_task(ctx, work, otherwise=said(text("Nobody confirmed it.")))


@tool("Needs two inputs while it runs.")
async def multi_input(ctx: Any, given: Json) -> Json:
    async def work(job: Job) -> Json:
        one, two = form("One?", name={"type": "string"}), form("Two?", name={"type": "string"})
        answers = await job.ask(one=one, two=two)
        return said(text(f"{len(answers)} inputs arrived."))

    return await as_task(ctx, work)


@tool("Needs a name first, and then takes its time.")
async def test_tool_with_task(ctx: Any, given: Json) -> Json:
    name = field_of(ctx, "user_name", "name")
    if not isinstance(name, str):
        return needs({"user_name": form("What is your name?", name={"type": "string"})})

    async def work(job: Job) -> Json:
        await asyncio.sleep(0.1)
        return said(text(f"Hello, {name}!"))

    return await as_task(ctx, work)
