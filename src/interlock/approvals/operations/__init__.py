"""Operations on approvals, approvers, standing grants and the classification of tools."""
