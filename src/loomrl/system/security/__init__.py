"""Keys, signatures, encryption, secrets and logins."""
