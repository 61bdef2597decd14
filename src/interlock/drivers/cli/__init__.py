"""Commands about drivers."""
