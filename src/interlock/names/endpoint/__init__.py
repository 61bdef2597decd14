"""The registry of names over HTTP: read by clients or by everyone, changed by controllers who sign."""
