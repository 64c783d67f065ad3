"""Bad policies, rewards and environments, a file each: its docstring says what is wrong with it.

A policy's file has `spoil(policy)`, or `tamper(folders)` for what is done to files; the others have an environment
class of their own, `ENVIRONMENT`, and what of `TRAINING` differs. `SAFETY` says what its user wants of that task:
limits and objectives, the same whatever is wrong, and nothing that knows of a flaw. Policies in flawed worlds are
trained there: nobody tells them what to exploit.
"""
