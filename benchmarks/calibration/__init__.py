"""How often bounds and tests that decide are wrong, and how often they find what is there: `make calibration`.

One file of `topics/` for each such bound or test; the directory is the registry. `topic.py` says what a topic is.
"""
