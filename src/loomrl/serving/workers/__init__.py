"""Several worker processes behind one address."""
