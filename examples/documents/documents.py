"""Documents in SQLite as an MCP-AQL server: ten operations, each a function.

    python examples/documents/documents.py [FILE]

It speaks MCP over standard input and output. FILE is where the documents are kept; without it they live in memory.
"""

import asyncio
import sqlite3
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from interlock.aql import Adapter, Binary, Execution, Listing, Page, Sort, not_found

Title = Annotated[str, "What it is called.", Meta(min_length=1, max_length=200)]
DocumentId = Annotated[str, "The id of a document."]


class Metadata(msgspec.Struct, omit_defaults=True):
    """What is said about a document."""

    priority: Literal["low", "medium", "high"] | None = None
    author: str | None = None
    tags: list[str] = []


class Document(msgspec.Struct):
    """A document. Its text can be absent, so that null removes it. Priority and author exist without a value."""

    id: str
    title: Title
    created_at: datetime
    body: str | UnsetType = UNSET
    metadata: Metadata = msgspec.field(default_factory=Metadata)


class Filter(msgspec.Struct, forbid_unknown_fields=True):
    """Which documents; what is left out does not matter."""

    author: str | None = None
    tag: str | None = None


documents = Adapter("documents", version="1.0.0", description="Documents in SQLite.", versioned=[Document])
file = sys.argv[1] if len(sys.argv) > 1 else ":memory:"
store = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
store.execute("create table if not exists documents (id text primary key, text blob not null)")


def load(document_id: DocumentId) -> Document:
    row = store.execute("select text from documents where id = ?", (document_id,)).fetchone()
    if row is None:
        not_found("document", document_id)
    return msgspec.json.decode(row[0], type=Document)


def save(document: Document) -> Document:
    store.execute("insert or replace into documents values (?, ?)", (document.id, msgspec.json.encode(document)))
    return document


def every() -> list[Document]:
    rows = store.execute("select text from documents").fetchall()
    return [msgspec.json.decode(text, type=Document) for (text,) in rows]


@documents.create
def create_document(title: Title, body: Annotated[str, "Its text."] = "", author: str = "") -> Document:
    """Adds a document."""
    about = Metadata(author=author) if author else Metadata()
    key = f"doc_{uuid.uuid4().hex[:12]}"
    return save(Document(id=key, title=title, created_at=datetime.now(UTC), body=body, metadata=about))


@documents.create(name="import_document", reason="the text of a document comes as a file")
def import_document(title: Title, file: Annotated[Binary, "A text file."]) -> Document:
    """Adds a document from a file."""
    return create_document(title, file.content.decode(errors="replace"))


@documents.read
def get_document(document_id: DocumentId) -> Document:
    """One document, whole."""
    return load(document_id)


@documents.read(presets={"minimal": ("id", "title"), "standard": ("id", "title", "created_at", "metadata.priority")})
def list_documents(
    page: Page, filter: Filter | None = None, sort: Sort[Literal["id", "title"]] | None = None
) -> Listing[Document]:
    """The documents, page by page."""
    found = [
        one
        for one in every()
        if filter is None
        or ((filter.author in (None, one.metadata.author)) and (filter.tag is None or filter.tag in one.metadata.tags))
    ]
    if sort is not None and sort.field == "title":
        return page.of(found, key=lambda one: [one.title, one.id], sort=sort)
    return page.of(found, key=lambda one: one.id, sort=sort)


@documents.read(name="search", presets={"minimal": ("id", "title")})
def search(query: Annotated[str, "Words, any of which may stand in title or text."], page: Page) -> Listing[Document]:
    """Documents in which a word of the query stands."""
    words = query.lower().split()
    found = [one for one in every() if any(word in f"{one.title} {one.body or ''}".lower() for word in words)]
    return page.of(found, key=lambda one: one.id)


@documents.update(load=load, fixed=("id", "created_at"))
def update_document(
    document_id: DocumentId, input: Document, dry_run: Annotated[bool, "Show what would be."] = False
) -> Document:
    """Changes a document."""
    return input if dry_run else save(input)


@documents.delete(load=load, confirmation_message="Delete the document {document_id}?")
def delete_document(document_id: DocumentId) -> None:
    """Removes a document for good."""
    store.execute("delete from documents where id = ?", (document_id,))


@documents.execute(long_running=True, progress=True, states={"queued": "pending"})
async def execute_word_count(execution: Execution) -> dict[str, Any]:
    """Counts the words of all documents."""
    counts: Counter[str] = Counter()
    found = every()
    for number, document in enumerate(found, 1):
        counts.update((document.body or "").lower().split())
        execution.progress(current=number, total=len(found))
        await asyncio.sleep(0)
    return {"words": sum(counts.values()), "most_common": counts.most_common(5)}


if __name__ == "__main__":
    documents.run()
