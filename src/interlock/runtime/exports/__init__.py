"""Files of other clients changed on the person's word, with the file as it was kept beside it."""
