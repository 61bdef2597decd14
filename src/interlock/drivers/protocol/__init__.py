"""AIP-32 drivers, and the contracts (AIP-14) and inventories of secrets (AIP-19) beside them: servers as files.

Bytes and a file name come in, values or problems go out. Nothing here reads a folder, starts a program or knows a
secret's value.
"""
