"""The stores of a single node: SQLite files in its data folder.

`file` opens a file of ours and runs jobs on its thread. On it rest `store` (store.db), `audit` (audit/audit.db),
`names_log` (names.db) and `secrets` (secrets.db). Each has a schema of its own, so that one file is never mistaken for
another.
"""
