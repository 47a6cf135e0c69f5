"""A certificate authority of a federation's own: who may speak as its server, and who as which site.

A certificate says what it is for. One of a site is refused where a server's is due, so that no site can take
the server's place towards the others; and the other way round.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedstrata.core.errors import refused
from fedstrata.core.files import bytes_in, secret_bytes
from fedstrata.core.settings.kit import MOST_DAYS

_MAKER = " (fedstrata)"
_LONGEST_NAME = 64
"""Characters of a common name, as certificates have it."""
_BACKDATED = timedelta(hours=1)
"""For machines whose clocks are a little behind."""


@dataclass(frozen=True)
class Issued:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Signs the certificates of a federation.

    Args:
        certificate: Its own.
        key: Its private key.
    """

    def __init__(self, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self._certificate, self._key = certificate, key

    @classmethod
    def create(cls, federation: str) -> Authority:
        """Makes an authority with a key of its own (ECDSA over P-256)."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _named(f"{federation:.{_LONGEST_NAME - len(_MAKER)}}{_MAKER}")
        usage = x509.KeyUsage(
            digital_signature=False,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        certificate = (
            _begun(name, name, key.public_key(), datetime.now(UTC) + timedelta(days=MOST_DAYS))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def read(cls, certificate: Path, key: Path) -> Authority:
        """Reads an authority.

        Raises:
            ConfigurationError: A file cannot be read, is not what it must be, or others may read the key.
        """
        try:
            own = x509.load_pem_x509_certificate(bytes_in(certificate))
            private = serialization.load_pem_private_key(secret_bytes(key), password=None)
        except (ValueError, TypeError):  # the second of a key with a password
            message = f"{certificate} and {key} are no certificate and its key, unencrypted PEM"
            raise refused("", message, "wrong_form") from None
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != own.public_key():
            raise refused("", f"{key} is not the key of {certificate}", "conflict")
        return cls(own, private)

    @property
    def issued(self) -> Issued:
        """Its own certificate and key."""
        return Issued(_pem(self._certificate), _private(self._key))

    def site(self, name: str, days: int) -> Issued:
        """Issues a site's certificate, for a new key."""
        return self._issue(name, x509.DNSName(name), ExtendedKeyUsageOID.CLIENT_AUTH, days)

    def server(self, host: str, days: int) -> Issued:
        """Issues the server's certificate, for a new key.

        Args:
            host: The name or number under which sites call it.
            days: For how long it holds.
        """
        try:
            address: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(host.strip("[]")))
        except ValueError:
            address = x509.DNSName(host)
        return self._issue("server", address, ExtendedKeyUsageOID.SERVER_AUTH, days)

    def _issue(
        self, name: str, alternative: x509.GeneralName, purpose: x509.ObjectIdentifier, days: int
    ) -> Issued:
        now, end = datetime.now(UTC), self._certificate.not_valid_after_utc
        if end <= now:
            message = f"the federation's authority held until {end:%Y-%m-%d}, and can issue nothing any more"
            hint = "begin a new federation: fedstrata federation init"
            raise refused("--federation", f"{message}; {hint}", "expired")
        key = ec.generate_private_key(ec.SECP256R1())
        until = min(now + timedelta(days=days), end)  # what it has signed holds no longer than itself
        certificate = (
            _begun(_named(name), self._certificate.subject, key.public_key(), until)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return Issued(_pem(certificate), _private(key))


def validities_of(file: Path) -> list[tuple[datetime, datetime]]:
    """Returns from when and until when each certificate of a PEM file holds, in UTC; there is at least one.

    Raises:
        ConfigurationError: It cannot be read, or there is none in it.
    """
    try:
        found = x509.load_pem_x509_certificates(bytes_in(file))
    except ValueError:
        raise refused("", f"{file} is no certificate, PEM", "wrong_form") from None
    return [(each.not_valid_before_utc, each.not_valid_after_utc) for each in found]


def _begun(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - _BACKDATED)
        .not_valid_after(until)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    data: bytes = certificate.public_bytes(serialization.Encoding.PEM)
    return data


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    data: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return data
