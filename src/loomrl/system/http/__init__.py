"""HTTP servers: bounded requests, tokens, browsers, problems."""
