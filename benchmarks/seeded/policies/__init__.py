"""One file each."""
