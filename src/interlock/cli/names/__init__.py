"""The commands of the registry of names that change it or carry it elsewhere, and the options they share."""
