"""One file per safety check; a file here is found without being named anywhere else."""
