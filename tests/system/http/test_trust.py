"""What clients trust is read once, and asks for a certificate that somebody vouches for."""

import ssl

from loomrl.system.http.trust import trusted


def test_it_is_read_once_and_demands_a_name_that_is_vouched_for() -> None:
    context = trusted()
    assert context is trusted()
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname
    assert context.cert_store_stats()["x509_ca"] > 50
