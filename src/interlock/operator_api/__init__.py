"""The operator API as types: every answer and every request body of the operator endpoint, one module for each noun.

The runtime builds these structs, the operator endpoint encodes them, commands and pages read them, and the OpenAPI
document is generated from them; no shape is declared anywhere else. Only msgspec and the standard library are imported
here, so that a command that reads one answer loads one small module.

Answers may gain fields: readers ignore those they do not know, and a field that is added later gets a default, so that
a newer command can read an older node. Request bodies refuse members they do not know. A value that is absent in JSON
rather than null is `UNSET`. Times are RFC 3339 in UTC.
"""
