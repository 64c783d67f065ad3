"""One file each, by two authors who saw neither checks nor configs."""
