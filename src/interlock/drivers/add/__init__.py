"""`interlock add`: a server tried out, its contracts proposed, its folder written."""
