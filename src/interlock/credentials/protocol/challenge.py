"""The Authorization header of a request, and the WWW-Authenticate header that answers it (RFC 6750, RFC 9728)."""

import re
from typing import Final

TOKEN_BYTES_MAX: Final = 8192  # the largest that common servers and proxies carry in a header
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*", re.ASCII)  # RFC 6750 2.1
_UNQUOTABLE = re.compile(r"[^\x20-\x21\x23-\x5b\x5d-\x7e]")  # RFC 6750 3


def is_bearer(authorization: bytes) -> bool:
    return authorization.partition(b" ")[0].lower() == b"bearer"


def maybe_bearer(authorization: bytes) -> str | None:
    """The token of an Authorization header; None when it holds none, or nothing that could be one."""
    token = authorization.partition(b" ")[2]
    if not is_bearer(authorization) or len(token) > TOKEN_BYTES_MAX:
        return None
    text = token.strip(b" ").decode("latin-1")
    return text if _TOKEN.fullmatch(text) else None


def challenge(
    metadata_url: str, *, error: str | None = None, description: str | None = None, scope: str | None = None
) -> str:
    """RFC 6750 3.1: a request without a credential is told no error."""
    said = {"resource_metadata": metadata_url, "error": error, "error_description": description, "scope": scope}
    return "Bearer " + ", ".join(f'{name}="{_UNQUOTABLE.sub("", text)}"' for name, text in said.items() if text)
