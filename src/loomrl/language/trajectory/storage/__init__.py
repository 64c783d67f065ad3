"""How the hub survives a restart: its journal and its tables."""
