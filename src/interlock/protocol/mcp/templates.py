"""Whether a URI can come from a resource template (RFC 6570), for reads of a bare URI."""

import functools
import re

_EXPRESSION = re.compile(r"\{([+#./;?&]?)([^{}]*)\}")
# What each operator may expand to. Queries and fragments may be absent altogether.
_EXPANSION = {
    "": r"[^/?#]*",
    "+": r".*",
    "#": r"(?:#.*)?",
    ".": r"(?:\.[^/?#]*)?",
    "/": r"(?:/[^?#]*)?",
    ";": r"(?:;[^/?#]*)?",
    "?": r"(?:\?[^#]*)?",
    "&": r"(?:&[^#]*)?",
}
TEMPLATE_CHARS_MAX = 2048
EXPRESSIONS_MAX = 20  # a peer writes the template; more wildcards make matching slow


@functools.lru_cache(maxsize=1024)
def template_pattern(template: str) -> re.Pattern[str] | None:
    expressions = _EXPRESSION.findall(template)
    if len(template) > TEMPLATE_CHARS_MAX or len(expressions) > EXPRESSIONS_MAX:
        return None
    parts, at = [], 0
    for found in _EXPRESSION.finditer(template):
        parts.append(re.escape(template[at : found.start()]))
        parts.append(_EXPANSION[found[1]])
        at = found.end()
    parts.append(re.escape(template[at:]))
    return re.compile("".join(parts), re.DOTALL)


def matches(template: str, uri: str) -> bool:
    pattern = template_pattern(template)
    return pattern is not None and pattern.fullmatch(uri) is not None
