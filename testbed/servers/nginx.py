"""A real nginx with deploy/nginx/muster.conf, at ports and in a folder of a test's own."""

from __future__ import annotations

import datetime
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from testbed.chain.anvil import free_port
from testbed.http import get
from testbed.paths import ROOT
from testbed.processes import Process

CONFIG: Final = ROOT / "deploy" / "nginx" / "muster.conf"
PROGRAM: Final = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
HOST: Final = "run.example.org"
PORTS: Final = (8601, 8602, 8800)
"""Of the two orchestrators and the explorer."""


class Nginx(Process):
    """It passes on to orchestrators and an explorer, and serves weights itself. Its output is what it logs.

    A client of this machine may name another address in the header X-Test-Address. At `party_port` it hears the bytes
    that limits count it by.
    """

    def __init__(self, folder: Path, ports: list[int], weights: Path) -> None:
        """ports: what listens instead at each of PORTS."""
        folder.mkdir(exist_ok=True)
        self.port, self.tls_port, self.party_port = free_port(), free_port(), free_port()
        self.url, self.access_log = f"http://127.0.0.1:{self.port}", folder / "access.log"
        self.certificate = write_certificate(folder)
        self.config = folder / "nginx.conf"
        self.config.write_text(self._whole(folder, ports, weights))
        assert PROGRAM is not None
        command = [PROGRAM, "-p", folder, "-c", self.config, "-e", "stderr"]
        super().__init__(command, folder / "nginx.log")

    def stored(self) -> int:
        """Return the bytes of request bodies that are on disk, in files that it has removed and keeps open."""
        bodies = str(self.config.parent / "client_body")
        sizes = list[int]()
        for one in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                sizes += [one.stat().st_size] * os.readlink(one).startswith(bodies)
        return sum(sizes)

    def is_ready(self) -> bool:
        return get(f"{self.url}/metrics")[0] == 404

    def _whole(self, folder: Path, ports: list[int], weights: Path) -> str:
        """Return the whole configuration of a process that stays in the foreground, with what is this test's own."""
        text = CONFIG.read_text()
        for old, new in {
            **{f"127.0.0.1:{old}": f"127.0.0.1:{new}" for old, new in zip(PORTS, ports, strict=True)},
            "listen 80;": f"listen 127.0.0.1:{free_port()};",
            "listen [::]:80;": "",
            "listen 443 ssl http2;": f"listen 127.0.0.1:{self.tls_port} ssl http2;",
            "listen [::]:443 ssl http2;": f"listen 127.0.0.1:{self.port};",
            "/etc/muster/tls": str(folder),
            "/var/log/nginx/muster.log muster buffer=64k flush=5s": f"{self.access_log} muster",
            "/var/lib/muster/weights": str(weights),
        }.items():
            assert old in text, old
            text = text.replace(old, new)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        main = f"daemon off;\nmaster_process off;\npid {folder}/pid;\nevents {{}}\n"
        named = "access_log off;\nset_real_ip_from 127.0.0.1;\nreal_ip_header X-Test-Address;"
        party = f"server {{ listen 127.0.0.1:{self.party_port}; return 200 $muster_party; }}"
        return f"{main}http {{\n{paths}\n{named}\n{text}\n{party}\n}}\n"


def write_certificate(folder: Path) -> Path:
    """Write a key, and a certificate for HOST that it signs; return the certificate."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, HOST)])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = (
        made.serial_number(1).not_valid_before(now - datetime.timedelta(1)).not_valid_after(now + datetime.timedelta(1))
    )
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
    certificate = folder / "fullchain.pem"
    certificate.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    form = serialization.PrivateFormat.PKCS8
    (folder / "privkey.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, plain))
    return certificate
