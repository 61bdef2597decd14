"""A domain as an MCP-AQL server, in a few lines: a typed handler per operation, everything else from its signature.

    from interlock.aql import Adapter, not_found

    library = Adapter("library", description="The books of a library.")

    @library.read
    def get_book(book_id: str) -> Book:
        "One book."
        return BOOKS.get(book_id) or not_found("book", book_id)

    library.run()

It knows nothing of the node: it stands on the protocol and the transports alone.
"""

from interlock.aql.adapter import Adapter
from interlock.aql.concurrency import Concurrency
from interlock.aql.context import Context
from interlock.aql.executions import Execution
from interlock.aql.failures import already_exists, fail, not_found
from interlock.aql.pages import Listing, Page, Sort
from interlock.aql.signature import DeclarationInvalid
from interlock.aql.values import BigInt, Binary
from interlock.protocol.aql.errors import Code, OperationFailed
from interlock.protocol.aql.limits import Limits
from interlock.protocol.aql.model import Category, Danger, Example

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
