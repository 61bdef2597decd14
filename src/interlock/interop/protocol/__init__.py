"""Other programs' files about MCP servers: configurations of clients, descriptions from registries, containers,
bundles.

The modules turn bytes into values. They open no files, start no programs, do not read the environment, and never run
what a file tells them to run. A value that may be a secret leaves this package only in `SecretFinding.value`, which is
meant for the encrypted store.
"""
