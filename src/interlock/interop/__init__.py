"""Import from and export to other clients: finding files, trying drafts, writing folders, pointing clients here."""
