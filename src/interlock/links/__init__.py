"""Links to servers: connecting, handshake, requests, renewal of credentials, supervision."""
