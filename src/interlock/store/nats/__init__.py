"""The store on NATS JetStream, which several replicas of a node share.

`connection` keeps the connection to the servers and matches answers with requests. `jetstream` has the requests that
all parts need, and reads a stream without gaps. On these rest `key_value`, `store` with the streams, and `names_log`.

Streams are named by the node. An entry, a stream or a bucket may have any text as its name; `jetstream.token` turns it
into what NATS takes.
"""
