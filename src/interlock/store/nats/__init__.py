"""The store on NATS JetStream, which several replicas of a node share."""
