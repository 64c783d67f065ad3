"""Effects: one module per stage, whose Prefect task has DVC run it, logs to MLflow and publishes artifacts.

A task is given a run's id and nothing else: what it needs stands in the run's record, what it found goes there.
"""
