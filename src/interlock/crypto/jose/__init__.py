"""JOSE: JWT, JWKS, public keys, claims and base64url, with their one error."""
