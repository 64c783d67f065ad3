"""The command line, `loomrl`: one module for each room's commands. Nothing imports it."""
