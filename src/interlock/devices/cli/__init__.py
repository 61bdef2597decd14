"""Commands about devices."""
