"""The processes of a server with several workers: who begins them, and what each runs."""
