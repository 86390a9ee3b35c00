"""Do the certificates say who may do what, and stay the same when asked for again?"""

import base64
import json
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from cluster.certs import Authority, service_account_key, write_kubeconfig


def authority(folder: Path) -> Authority:
    made = Authority(folder, "ca")
    made.ensure()
    return made


def test_a_client_certificate_names_user_and_groups(tmp_path: Path):
    pair = authority(tmp_path).issue("system:node:a", groups=["system:nodes"])
    subject = x509.load_pem_x509_certificate(pair.cert.read_bytes()).subject
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == [
        "system:node:a"
    ]
    assert [a.value for a in subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)] == [
        "system:nodes"
    ]


def test_a_server_certificate_holds_its_addresses_and_names(tmp_path: Path):
    pair = authority(tmp_path).issue("server", hosts=["127.0.0.1", "localhost"])
    names = (
        x509.load_pem_x509_certificate(pair.cert.read_bytes())
        .extensions.get_extension_for_class(x509.SubjectAlternativeName)
        .value
    )
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]


def test_the_authority_and_what_it_issued_stay(tmp_path: Path):
    first = authority(tmp_path).issue("admin").cert.read_bytes()
    assert authority(tmp_path).issue("admin").cert.read_bytes() == first


def test_keys_are_for_their_owner_only(tmp_path: Path):
    pair = authority(tmp_path).issue("admin")
    keys = [authority(tmp_path).pair.key, pair.key, service_account_key(tmp_path)]
    assert {oct(key.stat().st_mode & 0o777) for key in keys} == {"0o600"}


def test_a_kubeconfig_holds_its_certificates(tmp_path: Path):
    made = authority(tmp_path)
    path = write_kubeconfig(
        tmp_path / "kubeconfig",
        server="https://127.0.0.1:6443",
        authority=made,
        client=made.issue("admin"),
    )
    said = json.loads(path.read_text())
    data = said["clusters"][0]["cluster"]["certificate-authority-data"]
    context = ssl.create_default_context(cadata=base64.b64decode(data).decode())
    assert context.get_ca_certs()[0]["subject"] == ((("commonName", "berth-ca"),),)
    assert path.stat().st_mode & 0o077 == 0
