"""Whether the champion still does in production what it showed before: looks at its audit log, one after the other."""
