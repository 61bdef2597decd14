"""What other programs' files say about MCP servers, as values: clients' configurations and packages' descriptions.

Bytes in, values out. Nothing here opens a file, starts a program or looks at the environment; what a file's text says
to run is never run. A value that may be a secret leaves this room only in `Finding.value`, for the encrypted store.
"""
