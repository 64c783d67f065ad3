"""A challenger that is asked what the champion was asked."""
