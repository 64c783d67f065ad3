"""Secrets that a life cycle of the tests knows, and must leave nowhere."""

PLANTED = "xkcd936-horse-battery"
PLANTED_FILE = "settings.local.py"  # untracked
SECRET_VARIABLES = (
    "LOOMRL_TOKEN",
    "LOOMRL_OPERATOR_TOKEN",
    "LOOMRL_ENGINE_TOKEN",
    "LOOMRL_HUB_TOKEN",
    "MLFLOW_TRACKING_PASSWORD",
    "AWS_SECRET_ACCESS_KEY",
    "PGPASSWORD",
)
