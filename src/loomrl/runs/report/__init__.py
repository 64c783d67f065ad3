"""The evidence report of one run: a page that works offline, and the same facts as JSON."""
