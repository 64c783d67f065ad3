"""The code an environment is made of: where it lies, how it is imported, what it depends on."""
