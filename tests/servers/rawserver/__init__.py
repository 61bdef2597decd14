"""MCP servers on the bare standard library: no SDK and no code of Interlock, so that a fault of ours cannot hide here.

`text` cuts JSON without reading it, `server` holds the protocol of both eras, `features` what an honest server offers,
`faults` what a bad one does, `cases` results whose bytes are known, `stdio`, `http` and `sse` the pipes.
"""
