"""A domain as an MCP-AQL server, in a few lines: a typed handler per operation, everything else from its signature.

    from interlock.aql import Adapter, not_found

    library = Adapter("library", description="The books of a library.")

    @library.read
    def get_book(book_id: str) -> Book:
        "One book."
        return BOOKS.get(book_id) or not_found("book", book_id)

    library.run()

The library loads nothing of the node: it uses the protocol and the transports alone.
"""

from interlock.aql.protocol.errors import Code, OperationFailed
from interlock.aql.protocol.model import Category, Danger, Example
from interlock.aql.protocol.requests import PayloadLimits as Limits
from interlock.sdk.aql.adapter import Adapter
from interlock.sdk.aql.executions import Execution
from interlock.sdk.aql.operations import Concurrency
from interlock.sdk.aql.signature import DeclarationInvalid
from interlock.sdk.aql.values import BigInt, Binary, Context, Listing, Page, Sort, already_exists, fail, not_found

__all__ = [
    "Adapter",
    "BigInt",
    "Binary",
    "Category",
    "Code",
    "Concurrency",
    "Context",
    "Danger",
    "DeclarationInvalid",
    "Example",
    "Execution",
    "Limits",
    "Listing",
    "OperationFailed",
    "Page",
    "Sort",
    "already_exists",
    "fail",
    "not_found",
]
