"""Bad policies, rewards and environments, a file each: what is wrong with it, and the check that must notice.

A file's docstring says what is wrong. `BLOCKED_BY` is a claim's id, or how it begins, `data` for the data gate, or
`environment` where no policy can be examined at all. A policy's file has `spoil(policy)`, or `tamper(folders)` for what
is done to files; the others have an environment class of their own, `ENVIRONMENT`, and what of `SAFETY` and `TRAINING`
differs. Policies in flawed worlds are trained there: nobody tells them what to exploit.
"""
