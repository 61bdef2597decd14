"""What a node remembers: ports, their implementations on SQLite and NATS JetStream, tokens, and the audit log.

`ports` says what the node asks of a store. A node alone uses SQLite files in its data folder. Replicas of one node
share a store on NATS; then the same calls are served over the network, and `Store.replication` tells each replica what
the others wrote. The audit log stays on each replica's disk.

The order of a write is always the same: durable first, then visible. A call returns when what it promised is on disk,
or at the server.
"""
