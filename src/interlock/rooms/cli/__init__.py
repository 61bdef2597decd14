"""Commands about rooms."""
