"""Commands about approvals."""
