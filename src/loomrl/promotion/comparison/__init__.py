"""Two versions of a policy in production: side by side, and the challenger by the champion's log."""
