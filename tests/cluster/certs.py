"""Who may talk to whom in the cluster, and with which key?

One authority signs the API server, every client and the kubelet; another signs etcd and its one
client, so that no certificate of the cluster opens its database.
"""

import base64
import ipaddress
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID_FOR = timedelta(days=365)
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority below `folder`; made on first use and then kept."""

    folder: Path
    name: str

    @property
    def pair(self) -> Pair:
        return Pair(self.folder / f"{self.name}.crt", self.folder / f"{self.name}.key")

    def ensure(self) -> None:
        if self.pair.cert.exists():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _subject(f"berth-{self.name}", ())
        usage = x509.KeyUsage(
            digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
            encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = (
            _certificate(subject, issuer=subject, public=key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
        )
        _write(self.pair, key=key, cert=builder.sign(key, hashes.SHA256()))

    def issue(
        self, common_name: str, *, groups: Sequence[str] = (), hosts: Sequence[str] = ()
    ) -> Pair:
        """A certificate for a client (its groups are organisations) and for a server on `hosts`.

        An existing one is handed out again; the hosts of a name must not change.
        """
        stem = common_name.replace(":", "_").replace("/", "_")
        pair = Pair(self.folder / f"{stem}.crt", self.folder / f"{stem}.key")
        if pair.cert.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _certificate(
            _subject(common_name, groups),
            issuer=self._certificate().subject,
            public=key.public_key(),
        )
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if hosts:
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(_alternative_names(hosts), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        _write(pair, key=key, cert=builder.sign(self._key(), hashes.SHA256()))
        return pair

    def _certificate(self) -> x509.Certificate:
        return x509.load_pem_x509_certificate(self.pair.cert.read_bytes())

    def _key(self) -> ec.EllipticCurvePrivateKey:
        key = serialization.load_pem_private_key(self.pair.key.read_bytes(), password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key


def service_account_key(folder: Path) -> Path:
    """The key that signs service account tokens; the API server derives the public half itself."""
    path = folder / "service-account.key"
    if not path.exists():
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        _write_private(path, _pem(key))
    return path


def write_kubeconfig(path: Path, *, server: str, authority: Authority, client: Pair) -> Path:
    """A kubeconfig that holds its certificates, so that it can be copied. JSON is valid YAML."""
    named = "berth"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": named,
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _encoded(authority.pair.cert),
                },
            }
        ],
        "users": [
            {
                "name": named,
                "user": {
                    "client-certificate-data": _encoded(client.cert),
                    "client-key-data": _encoded(client.key),
                },
            }
        ],
        "contexts": [{"name": named, "context": {"cluster": named, "user": named}}],
        "current-context": named,
    }
    _write_private(path, json.dumps(config, indent=1).encode())
    return path


def _subject(common_name: str, groups: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _certificate(
    subject: x509.Name, *, issuer: x509.Name, public: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID_FOR)
    )


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)


def _pem(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _write(pair: Pair, *, key: ec.EllipticCurvePrivateKey, cert: x509.Certificate) -> None:
    # The certificate comes last: its presence says that the pair is whole.
    _write_private(pair.key, _pem(key))
    pair.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))


def _write_private(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(f"{path.suffix}.{os.getpid()}")
    draft.touch(mode=0o600)
    draft.write_bytes(data)
    draft.replace(path)


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
