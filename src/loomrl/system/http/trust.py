"""Whom clients trust, where a server has TLS."""

import ssl
from functools import cache

import httpx


@cache
def trusted() -> ssl.SSLContext:
    """The roots of trust of this installation. To read all of them takes a client 0.04 s; here they are read once in a
    process, whatever environment variables say."""
    return httpx.create_ssl_context(trust_env=False)
