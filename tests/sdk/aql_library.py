"""A small adapter with every kind of operation, and a way to call it as an endpoint tool is called."""

import asyncio
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from tests.aql.aql_schemas import check_answer

from interlock.sdk.aql import Adapter, BigInt, Binary, Context, Execution, Listing, Page, Sort, not_found
from interlock.sdk.aql.service import Service
from interlock.sdk.subserver import tools


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Metadata(msgspec.Struct, omit_defaults=True):
    priority: str | None = None
    tags: list[str] = []
    author: str | None = None


class Document(msgspec.Struct, omit_defaults=True):
    resource_id: str
    title: Annotated[str, Meta(max_length=100)]
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Box(msgspec.Struct):
    """Everything that JSON has no word for."""

    made: datetime
    count: int
    price: Decimal
    raw: bytes


class Library:
    """An adapter over a dictionary. `calls`: what reached a handler."""

    def __init__(self, **options: Any) -> None:
        self.calls: list[str] = []
        self.documents: dict[str, Document] = {}
        self.adapter = Adapter("library", versioned=[Document], **options)
        self._declare(self.adapter)
        self.service = Service(self.adapter)
        self.progress: list[tuple[float, float | None, str | None]] = []

    async def call(self, tool: str, operation: str | None = None, **members: Any) -> dict[str, Any]:
        """The envelope of `{operation, **members}` sent to mcp_aql_<tool>, or to mcp_aql where it is empty."""
        request = members if operation is None else {"operation": operation, **members}
        return (await self.send(tool, json.dumps(request)))[0]

    async def send(self, tool: str, text: str | bytes) -> tuple[dict[str, Any], bool]:
        call = tools.Context(lambda *told: self.progress.append(told), {})
        raw = text.encode() if isinstance(text, str) else text
        name = f"mcp_aql_{tool}" if tool else "mcp_aql"
        envelope, is_error = await self.service.answer(name, raw, call)
        body: dict[str, Any] = json.loads(envelope)
        check_answer(body, _maybe_json(raw))
        return body, is_error

    def ask(self, tool: str, operation: str | None = None, **members: Any) -> dict[str, Any]:
        return asyncio.run(self.call(tool, operation, **members))

    def details(self, operation: str) -> dict[str, Any]:
        reply = self.ask("read", "introspect", params={"query": "operations", "name": operation})
        details: dict[str, Any] = reply["data"]["operation"]
        return details

    def parameters(self, operation: str) -> dict[str, dict[str, Any]]:
        return {parameter["name"]: parameter for parameter in self.details(operation)["parameters"]}

    def _load(self, resource_id: str) -> Document:
        self.calls.append("load")
        return self.documents.get(resource_id) or not_found("document", resource_id)

    def _declare(self, adapter: Adapter) -> None:
        library = self

        @adapter.read
        async def list_users() -> list[str]:
            """The users."""
            library.calls.append("list_users")
            return ["ada", "grace"]

        @adapter.read
        async def get_user(user_id: str) -> dict[str, str]:
            """One user."""
            library.calls.append(f"get_user {user_id}")
            return {"user_id": user_id}

        @adapter.create
        async def create_document(
            title: Annotated[str, "What it is called."], resource_id: str = "a", tags: list[str] | None = None
        ) -> dict[str, Any]:
            """Adds a document."""
            library.calls.append("create_document")
            library.documents[resource_id] = Document(resource_id, title, Metadata(tags=tags or []))
            return {"id": resource_id, "title": title, "created_at": datetime.now(UTC)}

        @adapter.read
        async def get_document(resource_id: str) -> Document:
            """One document."""
            return library._load(resource_id)

        @adapter.read(presets={"minimal": ("resource_id",), "standard": ("resource_id", "title")})
        async def list_documents(
            page: Page, sort: Sort[Literal["title", "resource_id"]] | None = None
        ) -> Listing[Document]:
            """The documents."""
            by = "resource_id" if sort is None else sort.field
            return page.of(library.documents.values(), key=lambda entry: getattr(entry, by), sort=sort)

        @adapter.update(load=lambda resource_id: library._load(resource_id))
        async def update_note(resource_id: str, input: Document) -> Document:
            """Changes a document, without asking for its version."""
            library.documents[resource_id] = input
            return input

        async def load(resource_id: str) -> Document:
            return library._load(resource_id)

        @adapter.update(load=load)
        async def update_document(
            resource_id: str, input: Document, dry_run: Annotated[bool, "Only show what would be."] = False
        ) -> Document:
            """Changes a document."""
            library.calls.append("update_document")
            if not dry_run:
                library.documents[resource_id] = input
            return input

        @adapter.delete(load=load, confirmation_message="Delete {resource_id}?")
        async def delete_document(resource_id: str) -> None:
            """Removes a document."""
            library.calls.append("delete_document")
            del library.documents[resource_id]

        @adapter.read(name="get_value")
        async def get_value(value: Any) -> Any:
            """What it was given."""
            return value

        @adapter.read
        async def get_note(
            text: Annotated[str | msgspec.UnsetType | None, "null: without a text."] = msgspec.UNSET,
        ) -> dict[str, str]:
            """How a nullable parameter came."""
            return {"was": "absent" if text is msgspec.UNSET else "null" if text is None else "given"}

        @adapter.read
        async def get_day(
            day: date | None = None, at: datetime | None = None, colour: Colour | None = None
        ) -> dict[str, Any]:
            """What the values were read as."""
            return {"day": day, "at": at, "colour": None if colour is None else colour.name}

        @adapter.read
        async def get_number(
            count: int = 0, ratio: Annotated[float, Meta(ge=0, le=1)] = 0.5, big: BigInt | None = None
        ) -> dict[str, Any]:
            """What the numbers were read as."""
            return {"count": count, "ratio": ratio, "big": None if big is None else int(big)}

        @adapter.create
        async def create_file(file: Annotated[Binary, "Any file."]) -> dict[str, Any]:
            """Keeps a file."""
            return {"size": len(file.content), "kind": file.mime_type, "copy": file}

        @adapter.read
        async def get_box() -> Box:
            """Values that JSON has no word for."""
            return Box(datetime(2026, 2, 4, 10, 30, tzinfo=UTC), 2**60, Decimal("1.10"), b"\x00\x01")

        @adapter.execute(long_running=True, supports_retry=True, progress=True, states={"queued": "pending"})
        async def execute_job(execution: Execution, fails: bool = False) -> dict[str, bool]:
            """Runs a job."""
            library.calls.append("execute_job")
            execution.progress(percentage=50)
            if fails and library.calls.count("execute_job") == 1:
                not_found("thing", "x")
            return {"done": True}

        @adapter.execute
        async def execute_wait(context: Context) -> str:
            """Tells of its progress, and warns."""
            context.progress(1, 2, "half")
            for _ in range(2):
                context.warn("DEPRECATION_WARNING", "old")
            return "ended"

        @adapter.execute
        def execute_crash() -> None:
            """Fails."""
            raise RuntimeError("/secret/path")


def _maybe_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
