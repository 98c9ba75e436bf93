"""`cairn cert`: what it makes, as the openssl program reads it; what it refuses, and with which words."""
import json
import re
import shutil
import stat
import subprocess
import time

import pytest

from home import Home


@pytest.fixture(name="home")
def one_home():
    """No process runs in it: certificates need no coordinator."""
    home = Home()
    yield home
    shutil.rmtree(home.dir, ignore_errors=True)


@pytest.fixture(name="tls")
def one_authority(home):
    home.cairn("cert", "init", "--cluster", "lab", "--hosts", "cairn.example.org,10.0.0.7")
    return home.home / "tls"


def openssl(*args, check=True):
    done = subprocess.run(["openssl", *map(str, args)], text=True, capture_output=True, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done


def text_of(cert):
    return openssl("x509", "-in", cert, "-noout", "-text").stdout


def show(home, *files):
    return json.loads(home.cairn("cert", "show", *map(str, files), "-o", "json").stdout)


def refused(home, code, *args):
    done = home.cairn(*map(str, args), check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert done.stdout == "" and done.stderr.count("\n") == 1
    return done.stderr


def test_what_is_made_is_what_openssl_reads(home, tls):
    home.cairn("cert", "node", "gpu-07")
    home.cairn("cert", "operator", "alice")
    home.cairn("cert", "viewer", "bob")
    ca = text_of(tls / "ca.crt")
    assert "X509v3 Basic Constraints: critical\n                CA:TRUE, pathlen:0" in ca
    assert "X509v3 Key Usage: critical\n                Certificate Sign, CRL Sign" in ca
    made = {"node-gpu-07": "node/gpu-07", "operator-alice": "operator/alice", "viewer-bob": "viewer/bob",
            "coordinator": "coordinator/main"}
    for stem, who in made.items():
        text = text_of(tls / f"{stem}.crt")
        serves = stem == "coordinator"
        assert re.findall(r"URI:([^,\n]+)", text) == [f"cairn://lab/{who}"]
        assert ("TLS Web Server Authentication" in text) == serves
        assert ("TLS Web Client Authentication" in text) == (not serves)
        assert "X509v3 Basic Constraints: critical\n                CA:FALSE" in text
        assert "X509v3 Key Usage: critical\n                Digital Signature" in text
        assert "Subject Key Identifier" in text and "Authority Key Identifier" in text
        assert "ASN1 OID: prime256v1" in text
        purpose = "sslserver" if serves else "sslclient"
        openssl("verify", "-CAfile", tls / "ca.crt", "-purpose", purpose, tls / f"{stem}.crt")
        other = "sslclient" if serves else "sslserver"
        assert openssl("verify", "-CAfile", tls / "ca.crt", "-purpose", other, tls / f"{stem}.crt",
                       check=False).returncode != 0
        key = tls / f"{stem}.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_text().startswith("-----BEGIN PRIVATE KEY-----")  # PKCS#8
        public = openssl("x509", "-in", tls / f"{stem}.crt", "-noout", "-pubkey").stdout
        assert openssl("pkey", "-in", key, "-pubout").stdout == public
        assert openssl("x509", "-in", tls / f"{stem}.crt", "-noout", "-checkend", 29 * 86400).returncode == 0
        assert openssl("x509", "-in", tls / f"{stem}.crt", "-noout", "-checkend", 31 * 86400,
                       check=False).returncode == 1
    assert stat.S_IMODE((tls / "ca.key").stat().st_mode) == 0o600
    hosts = text_of(tls / "coordinator.crt")
    for host in ("DNS:cairnd", "DNS:localhost", "IP Address:127.0.0.1", "IP Address:0:0:0:0:0:0:0:1",
                 "DNS:cairn.example.org", "IP Address:10.0.0.7"):
        assert host in hosts


def test_show_tells_what_openssl_tells(home, tls):
    home.cairn("cert", "node", "gpu-07")
    rows = show(home)
    assert [row["role"] for row in rows] == ["ca", "coordinator", "node"]
    assert {row["cluster"] for row in rows} == {"lab"}
    for row in rows:
        serial = openssl("x509", "-in", row["file"], "-noout", "-serial").stdout.strip()
        assert serial == "serial=" + row["serial"]
        end = openssl("x509", "-in", row["file"], "-noout", "-enddate", "-dateopt", "iso_8601").stdout.strip()
        assert end == "notAfter=" + row["not_after"].replace("T", " ")
    assert rows[2]["name"] == "gpu-07" and rows[1]["hosts"].endswith("cairn.example.org,10.0.0.7")
    assert show(home, tls / "node-gpu-07.crt") == rows[2:]
    table = home.cairn("cert", "show").stdout.splitlines()
    assert table[0].split() == ["FILE", "ROLE", "NAME", "CLUSTER", "EXPIRES", "LEFT"]
    assert table[3].split()[-1] in ("29d", "30d")
    names = home.cairn("cert", "show", "-o", "name").stdout.split()
    assert names == [str(tls / name) for name in ("ca.crt", "coordinator.crt", "node-gpu-07.crt")]


def test_init_keeps_what_is_there(home, tls):
    before = {path: path.read_bytes() for path in tls.iterdir()}
    home.cairn("cert", "init")
    assert {path: path.read_bytes() for path in tls.iterdir()} == before
    assert "lab, not of other" in refused(home, 4, "cert", "init", "--cluster", "other")
    assert "with these hosts" in refused(home, 4, "cert", "init", "--hosts", "a.example")
    home.cairn("cert", "node", "n1")
    assert "cairn cert renew" in refused(home, 4, "cert", "node", "n1")
    elsewhere = home.dir / "elsewhere"
    assert "cairn cert init" in refused(home, 3, "cert", "node", "n1", "--dir", elsewhere)
    home.cairn("cert", "init", "--dir", str(elsewhere))
    assert show(home, elsewhere / "ca.crt")[0]["cluster"] == "cairn"
    # The authority's key may be away: nothing is signed then, and no half of a pair is left.
    (tls / "ca.key").rename(home.dir / "ca.key")
    assert "ca.key isn't there" in refused(home, 3, "cert", "node", "n2")
    (home.dir / "ca.key").rename(tls / "ca.key")
    (tls / "node-n1.key").unlink()
    assert "node-n1.crt is there already" in refused(home, 4, "cert", "node", "n1")
    assert not (tls / "node-n1.key").exists()


def test_names_that_say_more_than_a_name_are_refused(home, tls):
    for name in ("a,URI:cairn://lab/operator/a", "a/b", "../a", "", "a b", "x" * 128):
        assert "can't be a name" in refused(home, 2, "cert", "node", name)
    for host in ("a b", "*.example", "URI:cairn://lab/node/x", "10.0.0.1/8"):
        assert "neither a host name nor an address" in refused(
            home, 2, "cert", "init", "--dir", home.dir / "hosts", "--hosts", host)
    assert "can't be a cluster's name" in refused(home, 2, "cert", "init", "--dir", home.dir / "c", "--cluster", "A/b")
    assert sorted(path.name for path in tls.iterdir()) == ["ca.crt", "ca.key", "coordinator.crt", "coordinator.key"]


def test_check_names_the_file_and_the_way_out(home, tls):
    home.cairn("cert", "node", "n1")
    home.cairn("cert", "node", "n2")
    cert, key = tls / "node-n1.crt", tls / "node-n1.key"
    assert "n1" in home.cairn("cert", "check", str(cert)).stdout
    assert home.cairn("cert", "check", "-q", str(tls / "coordinator.crt")).stdout == ""

    assert "isn't the key of" in refused(home, 2, "cert", "check", cert, "--key", tls / "node-n2.key")
    other = home.dir / "other"
    home.cairn("cert", "init", "--dir", str(other))
    assert "wasn't signed by the authority" in refused(home, 2, "cert", "check", cert, "--ca", other / "ca.crt")
    assert "isn't there" in refused(home, 3, "cert", "check", cert, "--ca", home.dir / "no.crt")
    assert "--key" in refused(home, 2, "cert", "check", home.dir / "a.pem")
    good = cert.read_text()
    cert.write_text("garbage")
    assert "holds no certificate" in refused(home, 2, "cert", "check", cert)
    cert.write_text(good)
    # A key with a passphrase is refused, and nobody is asked for one.
    openssl("pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", home.dir / "locked.key")
    assert "passphrase" in refused(home, 2, "cert", "check", cert, "--key", home.dir / "locked.key")


def sign_as(tls, stem, days, names, usage="clientAuth"):
    """A certificate for a key of the folder, by the openssl program."""
    (tls / "ext").write_text(f"subjectAltName={names}\nextendedKeyUsage={usage}\n")
    openssl("req", "-new", "-key", tls / f"{stem}.key", "-subj", "/CN=x", "-out", tls / "csr")
    openssl("x509", "-req", "-in", tls / "csr", "-CA", tls / "ca.crt", "-CAkey", tls / "ca.key", "-days", days,
            "-extfile", tls / "ext", "-out", tls / f"{stem}.crt")


def test_certificates_of_others_are_judged_alike(home, tls):
    home.cairn("cert", "node", "n1")
    cert = tls / "node-n1.crt"
    sign_as(tls, "node-n1", 5, "URI:cairn://lab/node/n1")
    home.cairn("cert", "check", str(cert))
    sign_as(tls, "node-n1", 5, "URI:cairn://lab/node/n1", usage="serverAuth")
    assert "another use" in refused(home, 2, "cert", "check", cert)
    sign_as(tls, "node-n1", 5, "URI:cairn://lab/node/n1,URI:cairn://lab/operator/n1")
    assert "names no node" in refused(home, 2, "cert", "check", cert)
    sign_as(tls, "node-n1", 5, "DNS:n1")
    assert "names no node" in refused(home, 2, "cert", "check", cert)
    sign_as(tls, "node-n1", -1, "URI:cairn://lab/node/n1")
    assert "cairn cert renew" in refused(home, 2, "cert", "check", cert)
    home.cairn("cert", "renew", str(cert))
    home.cairn("cert", "check", str(cert))


def test_renew_keeps_key_name_and_hosts(home, tls):
    home.cairn("cert", "node", "n1")
    files = [tls / "coordinator.crt", tls / "node-n1.crt"]
    before, key = show(home, *files), (tls / "node-n1.key").read_bytes()
    time.sleep(1.1)  # certificates count seconds
    home.cairn("cert", "renew", *map(str, files))
    after = show(home, *files)
    for was, is_now in zip(before, after):
        assert is_now["not_after"] > was["not_after"] and is_now["serial"] != was["serial"]
        assert [is_now[k] for k in ("role", "name", "cluster", "hosts")] == \
            [was[k] for k in ("role", "name", "cluster", "hosts")]
        home.cairn("cert", "check", is_now["file"])
    assert (tls / "node-n1.key").read_bytes() == key
    other = home.dir / "other"
    home.cairn("cert", "init", "--dir", str(other))
    assert "another authority signed" in refused(home, 2, "cert", "renew", "--dir", other, files[0])
    assert "no certificate of a node" in refused(home, 2, "cert", "renew", tls / "ca.crt")


def test_a_home_without_certificates_says_how_to_make_them(home):
    assert "cairn cert init" in refused(home, 3, "cert", "show")
    assert "cairn cert init" in refused(home, 3, "cert", "viewer", "bob")
