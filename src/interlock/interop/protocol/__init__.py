"""Other programs' files about MCP servers: clients' configurations, registries, containers, bundles.

Bytes in, values out. Nothing here opens a file, starts a program or looks at the environment; what a file's text says
to run is never run. A value that may be a secret leaves this package only in `Finding.value`, for the encrypted store.
"""
