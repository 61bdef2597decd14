"""The types of the protocol itself, which every adapter lists (9.1, C.intro-10)."""

from collections.abc import Iterable
from typing import Final

from interlock.aql.protocol.model import Category, Danger, Parameter, TypeDeclaration


def _field(name: str, kind: str, description: str = "", *, required: bool = False) -> Parameter:
    return Parameter(name=name, type=kind, required=required, description=description)


PROTOCOL_TYPES: Final = (
    TypeDeclaration(name="SemanticCategory", kind="enum", values=tuple(category.value for category in Category)),
    TypeDeclaration(
        name="OperationInput",
        kind="object",
        description="What an endpoint is sent.",
        fields=(_field("operation", "string", "The operation to call.", required=True), _field("params", "object")),
    ),
    TypeDeclaration(name="OperationResult", kind="union", members=("OperationSuccess", "OperationFailure")),
    TypeDeclaration(
        name="OperationSuccess",
        kind="object",
        fields=(
            _field("success", "boolean", "true", required=True),
            _field("data", "any", required=True),
            _field("warnings", "array"),
            _field("_meta", "object"),
        ),
    ),
    TypeDeclaration(
        name="OperationFailure",
        kind="object",
        fields=(
            _field("success", "boolean", "false", required=True),
            _field("error", "object", "code, message and details.", required=True),
            _field("confirmation", "object", "The token of CONFIRMATION_REQUIRED."),
        ),
    ),
    TypeDeclaration(
        name="EndpointPermissions",
        kind="object",
        fields=(_field("readOnly", "boolean", required=True), _field("destructive", "boolean", required=True)),
    ),
)
DANGER_TYPE: Final = TypeDeclaration(name="DangerLevel", kind="enum", values=tuple(level.word for level in Danger))
FIELDS_TYPE: Final = TypeDeclaration(
    name="FieldSelection",
    kind="object",
    description="What the parameter fields takes: a preset, or paths.",
    fields=(
        Parameter(
            name="presets", type="string", enum=("minimal", "standard", "full"), description="A named selection."
        ),
        Parameter(
            name="fields", type="array", items={"type": "string"}, description="Paths such as id or owner.login."
        ),
        Parameter(name="computed_fields", type="array", items={"type": "string"}, description="Paths under _computed."),
    ),
)
CONTENT_TYPE: Final = TypeDeclaration(
    name="ContentReference",  # AQL-4.7.4-2
    kind="object",
    description="Content that is no JSON: it stands in the MCP result's content at content_index, as base64.",
    fields=(
        _field("type", "string", "image, audio, resource or resource_link.", required=True),
        _field("mime_type", "string"),
        _field("content_index", "integer", "Its place in content; content[0] is this answer.", required=True),
    ),
)


def protocol_types(
    *, has_danger: bool, has_fields: bool, more: Iterable[TypeDeclaration] = ()
) -> list[TypeDeclaration]:
    """`more`: of parts that are switched on, such as the safety loop's."""
    found = [*PROTOCOL_TYPES, CONTENT_TYPE]
    if has_danger:
        found.append(DANGER_TYPE)
    if has_fields:
        found.append(FIELDS_TYPE)
    return [*found, *more]
