"""The stores of a single node: SQLite files in its data folder.

`store` opens a file of ours, runs jobs on its thread, and has the default store (store.db). On it rest `audit`
(audit/audit.db), `names_log` (names.db) and `secrets` (secrets.db). Each has a schema of its own, so that one file is
never mistaken for another.
"""
