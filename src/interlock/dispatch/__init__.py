"""From a method to the route that serves it: calls, reads, subscriptions, tasks, timeouts."""
