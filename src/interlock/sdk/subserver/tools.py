"""Python functions as MCP tools: their definition, the check of arguments, the conversion of results, their errors.

A function's signature is its inputSchema and its docstring the description. Arguments are decoded into the annotated
types and refused if they do not fit; a result becomes text, and structured content if it is an object. `OfferedTools`
is the base of both libraries that offer functions: to an aggregator, or to the participants of a room.

Plain functions run in daemon threads, one per call, and not in a pool: a function that hangs must neither block the
others nor keep the process from ending.
"""

import asyncio
import contextlib
import contextvars
import copy
import functools
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Protocol, TypeVar, get_type_hints, overload

import msgspec
from msgspec import Raw

from interlock.ax.protocol.capability import InvalidAnnotation, as_object, hints, read_capability
from interlock.ax.protocol.names import is_segment, normalise


class SubserverInvalid(ValueError):
    """Exception for invalid arguments of a Subserver or of one of its methods."""


class ToolInvalid(SubserverInvalid):
    """Exception for a function that cannot be offered as a tool."""


class RegistrationRefused(Exception):
    """Exception for a registration that was rejected by the aggregator that started this program.

    If any other aggregator rejects the registration, the leaf tries again later.
    """


class ToolFailed(Exception):
    """Exception with which a tool reports a failure. The caller receives its message.

    For any other exception, the caller receives only a reference to the log of this leaf.
    """


CAPABILITY: Final = "x-mcpax-capability"


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """A complete tool result, for tools that build their MCP content blocks themselves."""

    content: list[dict[str, Any]]
    structured: Any = msgspec.UNSET
    is_error: bool = False


class Context:
    """The context of one call. A tool gets it in a parameter that is annotated `Context`, and may use it from any
    thread.
    """

    def __init__(
        self, report: Callable[[float, float | None, str | None], None] | None, meta: Mapping[str, Raw]
    ) -> None:
        self._report = report
        self._cancelled = threading.Event()
        self._meta = meta

    @property
    def cancelled(self) -> bool:
        """Return whether the caller no longer waits. Async tools are cancelled automatically; other tools should check
        this regularly.
        """
        return self._cancelled.is_set()

    def cancel(self) -> None:
        self._cancelled.set()

    @property
    def meta(self) -> dict[str, Any]:
        """Return the `_meta` of the call."""
        return {key: msgspec.json.decode(value) for key, value in self._meta.items()}

    def progress(self, done: float, total: float | None = None, message: str | None = None) -> None:
        """Report progress if the caller requested it. `done` must increase with each call."""
        if self._report is not None and not self.cancelled:
            self._report(done, total, message)


class ServedTool(Protocol):
    """The interface of a tool that an MCP server can run: a Python function, or an endpoint of an MCP-AQL adapter.

    `listed` is its definition in tools/list. A call can be cancelled only if `is_async` is true.
    """

    @property
    def name(self) -> str: ...

    @property
    def listed(self) -> Raw: ...

    @property
    def is_async(self) -> bool: ...

    async def answer(self, arguments: Raw, context: Context, *, revision: str) -> dict[str, Any]:
        """Return the members of a CallToolResult for a client with this MCP revision. Raise ToolFailed if the call
        fails.
        """


class FunctionTool(msgspec.Struct, frozen=True, kw_only=True):
    """A Python function that is offered as a tool."""

    name: str
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]
    context: str | None  # the parameter that takes a Context
    listed: Raw  # the tool as tools/list shows it

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    async def answer(self, arguments: Raw, context: Context, *, revision: str) -> dict[str, Any]:
        """Decode the arguments and call the function. Raise ToolFailed, which explains the error, if the arguments are
        invalid.
        """
        try:
            decoded = msgspec.json.decode(arguments, type=self.arguments)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ToolFailed(f"the arguments do not fit: {error}") from None
        values = {name: getattr(decoded, name) for name in self.arguments.__struct_fields__}
        if self.context is not None:
            values[self.context] = context
        return result(await call_function(self.function, values))


def make_tool(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    title: str | None = None,
    description: str | None = None,
    **capability: object,
) -> FunctionTool:
    """Return a tool that calls a function. Raise ToolInvalid if the signature of the function or an option is not
    supported.
    """
    local = name if name is not None else getattr(function, "__name__", "")
    if not is_segment(local):
        raise ToolInvalid(
            f"a tool's name is 1 to 63 characters of a-z, 0-9, _ and -, and {local!r} is not;"
            f' write @leaf.tool(name="{normalise(local) or "a_name"}")'
        )
    declared = read_capability(capability)
    if isinstance(declared, InvalidAnnotation):
        raise ToolInvalid(f"the tool {local}: {declared.reason}")
    fields, context = _parameters(local, function)
    try:
        arguments = msgspec.defstruct(local.replace("-", "_"), fields, kw_only=True, forbid_unknown_fields=True)
        (root,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    except (TypeError, NameError, ValueError) as error:
        raise ToolInvalid(f"the signature of {local} cannot be written as JSON Schema: {error}") from error
    # The root of the schema must be an object (MCP), not a reference to one.
    schema = components.pop(root["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    if components:
        schema["$defs"] = components
    listed: dict[str, Any] = {"name": local}
    if title is not None:
        listed["title"] = title
    listed["description"] = description if description is not None else inspect.getdoc(function) or ""
    listed["inputSchema"] = schema
    listed["annotations"] = hints(declared)
    listed["_meta"] = {CAPABILITY: as_object(declared)}
    return FunctionTool(
        name=local, function=function, arguments=arguments, context=context, listed=Raw(msgspec.json.encode(listed))
    )


def result(value: Any) -> dict[str, Any]:
    """Convert the return value of a tool to the members of a CallToolResult. Raise TypeError if JSON cannot represent
    it.
    """
    if isinstance(value, ToolResult):
        written: dict[str, Any] = {"content": value.content, "isError": value.is_error}
        return written if value.structured is msgspec.UNSET else {**written, "structuredContent": value.structured}
    if value is None:
        return {"content": [], "isError": False}
    if isinstance(value, str):
        return {"content": [_text(value)], "isError": False}
    encoded = msgspec.json.encode(value)
    members: dict[str, Any] = {"content": [_text(encoded.decode())], "isError": False}
    if encoded[:1] == b"{":  # only objects are legal as structured content in every revision of MCP
        members["structuredContent"] = Raw(encoded)
    return members


def failure(message: str) -> dict[str, Any]:
    return {"content": [_text(message)], "isError": True}


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _parameters(name: str, function: Callable[..., Any]) -> tuple[list[Any], str | None]:
    """Return the parameters of a function as fields of a struct, and the name of its `Context` parameter, or None.
    Raise ToolInvalid if a parameter is not supported.
    """
    try:
        hinted = get_type_hints(function, include_extras=True)
        signature = inspect.signature(function)
    except (NameError, TypeError, ValueError) as error:
        raise ToolInvalid(f"the annotations of {name} cannot be resolved: {error}") from error
    fields: list[Any] = []
    context = None
    for parameter in signature.parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolInvalid(f"the tool {name} takes {parameter}; arguments of a tool have names, one parameter each")
        kind = hinted.get(parameter.name, Any)
        if kind is Context:
            context = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        elif isinstance(parameter.default, list | dict | set | bytearray):
            fresh = functools.partial(copy.copy, parameter.default)
            fields.append((parameter.name, kind, msgspec.field(default_factory=fresh)))
        else:
            fields.append((parameter.name, kind, parameter.default))
    return fields, context


def call_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *arguments: Any) -> None:
    """Call a function in an event loop, from any thread. Do nothing if the loop has ended."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *arguments)


async def call_function(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a function and return its result. A function that is not async runs in a daemon thread, which does not
    prevent the process from ending if the function hangs.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def finish(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            done.set_exception(error)
        else:
            done.set_exception(RuntimeError(f"the tool raised {type(error).__name__}"))

    def work() -> None:
        value, error = None, None
        try:
            value = context.run(function, **arguments)
        except BaseException as raised:  # also SystemExit, or the caller would wait for ever
            error = raised
        call_in_loop(loop, finish, value, error)

    threading.Thread(target=work, name=f"tool {getattr(function, '__name__', '')}", daemon=True).start()
    return await done


_Function = TypeVar("_Function", bound=Callable[..., Any])


class OfferedTools:
    """The base class of Subserver and Participant. It collects tools with the decorator `tool`, and `stop` ends the
    serving.

    `serve` of the subclass sets the event loop that it uses and the event that ends it, and resets both afterwards.
    """

    def __init__(self) -> None:
        self._tools: dict[str, FunctionTool] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None

    def stop(self) -> None:
        """Let running calls finish for a few seconds, then disconnect and end `serve`. Any thread may call this."""
        if (stopping := self._stopping) is not None:
            self._on_loop(stopping.set)

    def _on_loop(self, act: Callable[[], None]) -> None:
        """Run a function on the event loop of `serve`. Any thread may call this. Do nothing if `serve` is not
        running.
        """
        if (loop := self._loop) is not None:
            call_in_loop(loop, act)

    async def _serve_until_signal(self, serve: Callable[[], Awaitable[None]]) -> None:
        """Run `serve`, and stop it on SIGTERM or SIGINT."""
        if os.name != "nt":
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, self.stop)
        await serve()

    def _on_offered(self) -> None:
        """Announce that a tool was added. Subclasses override this method."""

    @overload
    def tool(self, function: _Function) -> _Function: ...

    @overload
    def tool(
        self,
        function: None = None,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        **capability: object,
    ) -> Callable[[_Function], _Function]: ...

    def tool(self, function: Any = None, **options: Any) -> Any:
        """Offer a function as a tool; use this as a decorator. The options are name, title, description, and the keys
        of MCP-AX 9.1, such as mutable=False or latency_class="fast".

        A tool about which nothing is said counts as mutable and irreversible, and aggregators may ask a person before
        each call. Plain functions run in a thread of their own, async ones on the loop.
        """

        def offer(function: _Function) -> _Function:
            offered = make_tool(function, **options)
            if offered.name in self._tools:
                raise ToolInvalid(f"there is a tool {offered.name} already; give this one another name=")
            self._tools[offered.name] = offered
            self._on_offered()
            return function

        return offer if function is None else offer(function)
