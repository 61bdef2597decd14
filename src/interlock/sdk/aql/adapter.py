"""`Adapter`: the class with which a program offers a domain as an MCP-AQL server, from the signatures of its handlers.

An operation is named by a canonical verb and a resource (8.5); a name with another verb needs a reason. Declarations
are checked when they are made, so that a mistake stops the program at its start and not at the first call. The
parameters that the protocol adds (fields, if_match, a confirmation token, pages) follow from the category and the
types.

Every adapter with a long-running operation also gets the operations about executions (8.4).
"""

import asyncio
import inspect
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Annotated, Any, Final, TypeVar, overload

import msgspec

from interlock.aql.protocol import model
from interlock.aql.protocol.classification import category_of_request
from interlock.aql.protocol.families import MODES, PREFIX, PROFILES, AqlEndpoints, Mode, Profile
from interlock.aql.protocol.field_selection import PRESETS
from interlock.aql.protocol.requests import PayloadLimits
from interlock.aql.protocol.validation import Validator
from interlock.sdk.aql.executions import AdapterExecutions
from interlock.sdk.aql.operations import CONCURRENCIES, CONFIRMATION, FIELDS, IF_MATCH, AdapterOperation, Concurrency
from interlock.sdk.aql.signature import DeclarationInvalid, read_signature
from interlock.sdk.aql.values import Context

CANONICAL: Final[Mapping[model.Category, tuple[str, ...]]] = {
    model.Category.CREATE: ("create",),
    model.Category.READ: ("get", "list"),
    model.Category.UPDATE: ("update",),
    model.Category.DELETE: ("delete",),
    model.Category.EXECUTE: ("execute", "cancel"),
}
# Other verbs, with the canonical verb that each is similar to.
SIMILAR: Final[Mapping[str, str]] = {
    **dict.fromkeys(("add", "insert", "upload", "register", "import", "new", "make", "append", "copy"), "create"),
    **dict.fromkeys(("fetch", "read", "show", "find", "lookup", "describe", "check", "count", "export"), "get"),
    **dict.fromkeys(("search", "query", "browse", "filter", "enumerate"), "list"),
    **dict.fromkeys(("edit", "modify", "set", "change", "patch", "rename", "move", "replace", "put"), "update"),
    **dict.fromkeys(("remove", "destroy", "purge", "erase", "drop", "clear", "wipe"), "delete"),
    **dict.fromkeys(("run", "start", "send", "merge", "publish", "trigger", "invoke", "process", "retry"), "execute"),
    **dict.fromkeys(("stop", "abort", "end", "halt"), "cancel"),
}
WHOLE: Final = frozenset({"introspect", "search"})  # system-wide names that need no resource


def canonical_verb(name: str, category: model.Category) -> str:
    """Return the canonical verb, such as get or create, that best replaces the first word of an operation's name."""
    verb = name.partition("_")[0]
    verbs = CANONICAL[category]
    if verb in verbs:
        return verb
    near = SIMILAR.get(verb)
    return near if near in verbs else verbs[0]


def objection(name: str, category: model.Category, reason: str | None) -> str | None:
    """Return how the name of an operation violates the naming rules (8.5.3). Return None if it follows them, or if
    `reason` justifies the exception.
    """
    verb, _, rest = name.partition("_")
    is_known_verb = verb in SIMILAR or any(verb in verbs for verbs in CANONICAL.values())
    if verb in CANONICAL[category]:
        return None if rest else f"operation '{name}': a name has the form {verb}_RESOURCE (8.5.2)"
    if reason or name in WHOLE:
        return None
    canonical = canonical_verb(name, category)
    if not is_known_verb:
        return f"operation '{name}': it does not begin with a known verb; call it {canonical}_RESOURCE, or give reason="
    return f"operation '{name}': the canonical verb is '{canonical}'; use it, or give reason= (8.5.1)"


def describe_operation(description: str, name: str, category: model.Category, reason: str | None) -> str:
    """Return the description of an operation. If its verb is not canonical, `reason` and the canonical verb are
    appended (8.5.3).
    """
    if not reason or name.partition("_")[0] in CANONICAL[category]:
        return description
    sentence = reason.strip().rstrip(".")
    return f"{description.rstrip()} {sentence[:1].upper()}{sentence[1:]}. Similar to {canonical_verb(name, category)}."


log = logging.getLogger("interlock.aql")

FIELDS_PARAMETER: Final = model.AqlParameter(
    name=FIELDS,
    type="FieldSelection",
    description=f"{', '.join(PRESETS)}, or an array of paths such as id or owner.name.",
    of_gateway=True,
)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_CORE: Final = tuple(status.value for status in model.ExecutionStatus)


class _Decorator:
    """A decorator such as `@adapter.read`, which adds a function to an adapter as the handler of an operation. Its
    options are those of `Adapter.add`.
    """

    def __init__(self, category: model.Category, adapter: "Adapter | None" = None) -> None:
        self._category = category
        self._adapter = adapter

    def __get__(self, adapter: "Adapter", owner: type) -> "_Decorator":
        return _Decorator(self._category, adapter)

    @overload
    def __call__(self, function: _Function) -> _Function: ...

    @overload
    def __call__(self, function: None = None, **options: Any) -> Callable[[_Function], _Function]: ...

    def __call__(self, function: Any = None, **options: Any) -> Any:
        def declare(function: _Function) -> _Function:
            if self._adapter is None:
                raise TypeError("handlers are declared on an adapter, not on its class")
            self._adapter.add(self._category, function, **options)
            return function

        return declare if function is None else declare(function)


@dataclass(eq=False)
class Adapter:
    """The data and actions of a program, served as an MCP-AQL server. Decorators such as `@adapter.read` add
    operations.

    `versioned` are the Struct types whose resources have an `_etag`. With `strict_names`, names that do not follow 8.5
    are refused; otherwise they are only warned about. The environment variables MCP_AQL_ENDPOINT_MODE,
    MCP_AQL_ENDPOINT_PROFILE and MCP_AQL_TOOL_PREFIX override `mode`, `profile` and `prefix`.
    """

    name: str
    _: KW_ONLY
    version: str = "0.0.0"
    description: str = ""
    mode: Mode = "semantic"
    profile: str | Profile = "crude"
    prefix: str = ""
    concurrency: Concurrency = "read-concurrent"
    max_concurrent_requests: int | None = None
    limits: PayloadLimits = field(default_factory=PayloadLimits)
    versioned: Sequence[type] = ()
    danger_levels: bool = True
    strict_mode: bool = True
    strict_names: bool = False

    def __post_init__(self) -> None:
        environ = os.environ
        self.endpoints = _endpoints(
            environ.get("MCP_AQL_ENDPOINT_MODE", self.mode),
            environ.get("MCP_AQL_ENDPOINT_PROFILE", self.profile),
            environ.get("MCP_AQL_TOOL_PREFIX", self.prefix),
        )
        if self.concurrency not in CONCURRENCIES:  # AQL-9.3.1-1
            raise DeclarationInvalid(f"concurrency is one of {', '.join(CONCURRENCIES)}, not {self.concurrency!r}")
        self.operations: dict[str, AdapterOperation] = {}
        self.executions = AdapterExecutions()

    # The decorators that declare handlers. Handlers of `update` and `delete` take the identifiers of the resource.
    create = _Decorator(model.Category.CREATE)
    read = _Decorator(model.Category.READ)
    update = _Decorator(model.Category.UPDATE)
    delete = _Decorator(model.Category.DELETE)
    execute = _Decorator(model.Category.EXECUTE)

    def request(self, method: str, **options: Any) -> Callable[[_Function], _Function]:
        """Return a decorator that adds a function as the handler of requests with a REST method, such as GET.

        GET reads, PUT and PATCH change, DELETE removes. POST adds if its name says so, and otherwise runs something
        (8.5.1).
        """

        def declare(function: _Function) -> _Function:
            name = str(options.get("name") or getattr(function, "__name__", ""))
            if (category := category_of_request(method.upper(), name)) is None:
                raise DeclarationInvalid(f"operation '{name}': GET, PUT, PATCH, DELETE or POST, not {method!r} (8.5.1)")
            self.add(category, function, **options)
            return function

        return declare

    def run(self, *beside: "Adapter", http: str | None = None, token: str | None = None) -> None:
        """Serve MCP over standard input and output until the input ends. With `http="127.0.0.1:8000"`, serve it over
        HTTP at /mcp on that address instead.

        `beside` are other adapters in the same session; all but one need a `prefix`. `token` is the secret that HTTP
        clients must send (`Authorization: Bearer`); it is required for an address that other machines can reach. Raise
        ValueError for an invalid address or a missing token, and DeclarationInvalid if two adapters have a tool of the
        same name.
        """
        from interlock.sdk.aql.server import run_http, serve_stdio

        if not logging.getLogger().handlers:
            logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
        if http is None:
            asyncio.run(serve_stdio((self, *beside)))
        else:
            run_http((self, *beside), http, token)

    def add(
        self,
        category: model.Category,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        reason: str | None = None,
        family: str | None = None,
        danger: model.Danger | None = None,
        danger_reasons: Sequence[str] = (),
        confirmation_message: str = "",
        examples: Sequence[model.Example] = (),
        upsert: bool = False,
        load: Callable[..., Any] | None = None,
        fixed: Sequence[str] = (),
        presets: Mapping[str, Sequence[str]] | None = None,
        long_running: bool = False,
        supports_retry: bool = False,
        progress: bool = False,
        states: Mapping[str, str] | None = None,
        own: bool = False,
    ) -> None:
        """Add an operation that a function handles. Raise DeclarationInvalid, whose message describes the fault, if the
        declaration is invalid.

        CREATE: `upsert=True` means that the handler also accepts something that already exists. READ:
        `presets={"minimal": ("id", "title")}` defines sets of fields that a client can select by name.

        UPDATE: the parameters of the handler are the identifiers of the resource and `input`. With `load=get_document`
        (a function of the same identifiers) `input` is the whole resource with the changes merged in. Without it,
        `input` contains only the changes. `fixed=("id",)` lists fields that cannot be changed. A client removes a field
        with null if the field can be absent (`str | UnsetType = UNSET`) or exists without a value (`str | None`); null
        for any other field is refused. DELETE: if `load` returns a versioned type, the operation also accepts
        `if_match`.

        EXECUTE: with `long_running=True`, a call returns immediately with an execution that continues in the
        background. `supports_retry=True` and `progress=True` say what the execution can do.
        `states={"queued": "pending"}` adds states and maps each to a core state.

        `own` marks the operations of the library itself, which may have reserved names.
        """
        named = name if name is not None else getattr(function, "__name__", "")
        text = description if description is not None else inspect.getdoc(function) or ""
        problem = model.check_operation(model.AqlOperation(name=named, category=category, description=text))
        if problem is not None and not own:
            raise DeclarationInvalid(problem)
        identifiers = [parameter for parameter in inspect.signature(function).parameters if parameter != "input"]
        partial = {"input": (*fixed, *identifiers)} if category is model.Category.UPDATE else {}
        loaded = None if load is None else read_signature(getattr(load, "__name__", "load"), load, partial={})
        is_merged = loaded is not None and loaded.resource is not None
        signature = read_signature(named, function, partial=partial, is_merged=is_merged)
        parameters, types = [*signature.parameters], list(signature.types)
        # By default all fields of one resource are shown, few of a search, the usual ones of another collection
        # (C.fields-3).
        default_preset = "full"
        if signature.is_listing:
            default_preset = "minimal" if named.partition("_")[0] == "search" else "standard"
        if category is model.Category.READ and signature.resource is not None:
            parameters.append(msgspec.structs.replace(FIELDS_PARAMETER, default=default_preset))
        is_versioned = loaded is not None and loaded.resource in self.versioned
        if category in (model.Category.UPDATE, model.Category.DELETE) and is_versioned:
            parameters.append(IF_MATCH)
        level = model.DEFAULT_DANGER[category] if danger is None else danger
        if level >= model.Danger.DESTRUCTIVE and self.danger_levels:
            parameters.append(CONFIRMATION)
        lifecycle = None
        if long_running:
            lifecycle, extra = self._lifecycle(named, states or {}, supports_retry=supports_retry, progress=progress)
            types.append(extra)
        description = describe_operation(text, named, category, reason)
        if level >= model.Danger.DESTRUCTIVE and self.danger_levels:  # C.danger-4
            description = f"{description.rstrip()} Danger: {level.word}; it asks for a confirmation."
        operation = model.AqlOperation(
            name=named,
            category=category,
            description=description,
            parameters=tuple(parameters),
            returns=signature.returns,
            danger=danger,
            danger_reasons=tuple(danger_reasons),
            confirmation_message=confirmation_message,
            family=family,
            examples=tuple(examples),
            types=tuple(types),
            lifecycle=lifecycle,
            upsert=upsert,
        )
        self._check(operation, category, reason, own=own)
        self.operations[named] = AdapterOperation(
            declaration=operation,
            validator=Validator(operation),
            signature=signature,
            load=load,
            versioned=tuple(self.versioned),
            presets=presets or {},
            default_preset=default_preset,
            states=states or {},
        )
        if long_running and "get_execution" not in self.operations:
            add_execution_operations(self)

    def _check(self, operation: model.AqlOperation, category: model.Category, reason: str | None, *, own: bool) -> None:
        """Raise DeclarationInvalid if an operation is not valid. Log a warning if only its name is unusual."""
        problem = model.check_operation(operation)
        if operation.name in self.operations:  # AQL-6.2-1
            problem = f"operation '{operation.name}': there is one of this name already (6.2)"
        if problem is None and category is model.Category.UPDATE:
            # Identifiers must be outside `input`, and everything else inside it (4.5).
            beside = {"dry_run", IF_MATCH.name, CONFIRMATION.name}
            optional = [each.name for each in operation.parameters if not each.required and each.name not in beside]
            if "input" not in operation.by_name:  # AQL-4.5-1
                problem = f"operation '{operation.name}': an UPDATE takes what it changes in a parameter 'input' (4.5)"
            elif optional:  # AQL-4.5-1 and -2
                problem = (
                    f"operation '{operation.name}': '{optional[0]}' can be left out, so it belongs into 'input' (4.5)"
                )
        if problem is None and operation.upsert and category is not model.Category.CREATE:
            problem = f"operation '{operation.name}': upsert goes with CREATE (8.3)"
        if problem is None and not own:
            warning = objection(operation.name, category, reason)
            if warning is not None and self.strict_names:
                problem = warning
            elif warning is not None:
                log.warning("%s", warning)
        if problem is not None:
            raise DeclarationInvalid(problem)

    def _lifecycle(
        self, name: str, states: Mapping[str, str], *, supports_retry: bool, progress: bool
    ) -> tuple[model.Lifecycle, model.TypeDeclaration]:
        """Return the life cycle of a long-running operation, and the declaration of its states. Raise
        DeclarationInvalid if `states` is invalid.
        """
        for state, core in states.items():
            if state in _CORE or core not in ("pending", "running"):  # AQL-8.4.4-2
                raise DeclarationInvalid(
                    f"operation '{name}': the state '{state}' must be a new one and map to pending or running (8.4.4)"
                )
        every = (*_CORE, *states)
        extra = "; ".join(f"{state} counts as {core}" for state, core in states.items())
        text = f"The states of an execution. {extra}".strip()
        # AQL-8.4.4-2
        declaration = model.TypeDeclaration(name="ExecutionState", kind="enum", values=every, description=text)
        return model.Lifecycle(
            every, supports_cancel=True, supports_retry=supports_retry, progress_reporting=progress
        ), declaration


def _endpoints(mode: str, profile: str | Profile, prefix: str) -> AqlEndpoints:
    """Return the endpoint tools for a mode, a profile and a name prefix. Raise DeclarationInvalid if one of these is
    invalid.
    """
    if mode == "crude":  # the older word
        log.info("the mode crude is called semantic, with the profile crude")
        mode = "semantic"
    if mode not in MODES:  # AQL-3.3-5
        raise DeclarationInvalid(f"the mode is one of {', '.join(MODES)}, not {mode!r}")
    chosen = profile if isinstance(profile, Profile) else PROFILES.get(profile)
    if chosen is None:
        raise DeclarationInvalid(f"the profile is one of {', '.join(PROFILES)}, not {profile!r}")
    if prefix and PREFIX.fullmatch(prefix) is None:
        raise DeclarationInvalid(
            f"a prefix is lower-case letters, digits and underscores, under 20, ending in _; not {prefix!r}"
        )
    return AqlEndpoints(mode=mode, profile=chosen, prefix=prefix)


_Id = Annotated[str, "The execution_id of the answer that started it."]


def add_execution_operations(adapter: "Adapter") -> None:
    """Add the operations with which clients query, list, cancel and retry executions (8.4)."""
    executions = adapter.executions

    @adapter.read(own=True, description="The state of an execution, with its result once completed. Changes no state.")
    async def get_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        return executions.found(execution_id, context.caller).answer()

    @adapter.read(own=True, description="The executions of this caller. Changes no state.")
    async def list_executions(context: Context) -> dict[str, Any]:
        return {"items": [{"operation": each.operation, **each.answer()} for each in executions.of(context.caller)]}

    @adapter.execute(own=True, description="Ends an execution: pending or running becomes cancelled.")
    async def cancel_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        execution = executions.found(execution_id, context.caller)
        execution.cancel()
        return execution.answer()

    @adapter.execute(
        own=True,
        description="Runs a failed execution again, where its operation supports that: failed becomes running.",
    )
    async def retry_execution(execution_id: _Id, context: Context) -> dict[str, Any]:
        execution = executions.found(execution_id, context.caller)
        execution.retry()
        return execution.answer()
