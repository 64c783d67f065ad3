"""The HTTP interface of the policy server."""
