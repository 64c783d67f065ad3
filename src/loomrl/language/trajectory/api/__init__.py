"""The HTTP interface of the Trajectory API."""
