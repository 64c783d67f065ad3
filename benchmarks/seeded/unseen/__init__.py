"""One file each, by an author who saw neither checks nor configs."""
