"""Certificates for tests: an authority of its own, and what it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Authority:
    """Signs certificates for 127.0.0.1; `file` is its own, which clients trust."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("streamjoin tests")
        own = _begun(self._name, self._key.public_key()).issuer_name(self._name)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.file = directory / "authority.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def sign(self) -> int:
        """Write `service.crt` and `service.key` anew; returns the certificate's serial number."""
        key = ec.generate_private_key(ec.SECP256R1())
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        begun = _begun(_name("the service"), key.public_key()).issuer_name(self._name)
        signed = begun.add_extension(address, critical=False).sign(self._key, hashes.SHA256())
        plain = serialization.NoEncryption()
        pem = serialization.Encoding.PEM
        (self._directory / "service.key").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
        (self._directory / "service.crt").write_bytes(signed.public_bytes(pem))
        return signed.serial_number


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begun(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
    )
