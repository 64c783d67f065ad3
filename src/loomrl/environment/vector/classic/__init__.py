"""Gymnasium's classic control as compiled dynamics: one file for each, named like the module of its entry point."""
