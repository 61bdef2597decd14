"""Links of one's own: which servers give each principal or session one, how many there are, and when they end."""
