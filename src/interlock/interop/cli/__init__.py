"""Commands about import and export."""
