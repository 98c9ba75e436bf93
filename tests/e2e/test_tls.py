"""A coordinator that speaks TLS: who may do what by which certificate. What is refused: test_credentials.py."""
import os
import subprocess
import sys
import time

import grpc
import pytest

from home import BIN, ROOT, Home, until
from test_suspect import ready

CALL_S = 10


class TlsHome(Home):
    """cairnd on 127.0.0.1 with certificates, one agent that dials it so; people use the socket, or TLS by args."""
    options = ()  # of cairnd

    def __enter__(self):
        self.cairn("cert", "init", "--cluster", "lab")
        for role, name in (("node", "n1"), ("node", "n2"), ("operator", "alice"), ("viewer", "bob")):
            self.cairn("cert", role, name)
        self.tls = self.home / "tls"
        self.children = []
        try:
            self.start("cairnd", "--listen", "127.0.0.1:0", *self.files("coordinator"), *self.options)
            until(lambda: (self.home / "cairnd.addr").exists() and self.cairn("ps", check=False).returncode == 0, 20,
                  "the coordinator serves")
            self.address = (self.home / "cairnd.addr").read_text(encoding="utf-8")
        except BaseException:
            self.__exit__(True, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        super().__exit__(kind, value, trace)
        for child in self.children:
            child.wait()

    def files(self, stem, ca="ca"):
        return ["--tls-cert", str(self.tls / f"{stem}.crt"), "--tls-key", str(self.tls / f"{stem}.key"),
                "--tls-ca", str(self.tls / f"{ca}.crt")]

    def start(self, program, *args):
        (self.home / "log").mkdir(exist_ok=True)
        with (self.home / "log" / f"{program}.log").open("ab") as log:
            self.children.append(subprocess.Popen([BIN / program, *args], env=self.env, stdin=subprocess.DEVNULL,
                                                  stdout=log, stderr=log, start_new_session=True))
        return self.children[-1]

    def start_agent(self, *args):
        return self.start("cairn-agent", "--coordinator", self.address, "--slots", "4", *args)

    def by(self, stem, *args):
        """`cairn` over TLS."""
        return self.cairn("--addr", self.address, *self.files(stem), *args, check=False)

    def log_of(self, program):
        return (self.home / "log" / f"{program}.log").read_text(encoding="utf-8", errors="replace")

    def channel(self, stem=None, ca="ca"):
        """Python's own client, which checks nothing before it dials."""
        key, cert = ((self.tls / f"{stem}.{end}").read_bytes() for end in ("key", "crt")) if stem else (None, None)
        credentials = grpc.ssl_channel_credentials((self.tls / f"{ca}.crt").read_bytes(), key, cert)
        return grpc.secure_channel(self.address, credentials)


@pytest.fixture(scope="module", name="pb")
def messages(tmp_path_factory):
    out = tmp_path_factory.mktemp("pb")
    protos = sorted((ROOT / "proto").glob("cairn/v1/*.proto"))
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}", *protos], check=True)
    sys.path.insert(0, str(out))

    class Messages:
        import cairn.v1.control_pb2 as control
        import cairn.v1.fleet_pb2 as fleet
        import cairn.v1.training_pb2 as training
    return Messages


@pytest.fixture(scope="module", name="home")
def one_home():
    with TlsHome() as home:
        yield home


def refused(channel, method, request, reply, *, metadata=None):
    call = channel.unary_unary(method, type(request).SerializeToString, reply.FromString)
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=CALL_S, metadata=metadata)
    return caught.value.code(), caught.value.details()


def test_a_job_over_tls_has_the_weights_of_one_without(home):
    agent = home.start_agent(*home.files("node-n1"))
    until(lambda: "n1" in home.cairn("node", "ls").stdout, 20, "the agent joined, by the name in its certificate")
    tls = home.run()
    trainers = home.pids("cairn-trainer")
    assert not trainers
    agent.send_signal(2)
    with Home() as plain:
        assert plain.run() == tls


def test_roles(home):
    job = home.by("operator-alice", "submit", "--help")
    assert job.returncode == 0
    assert home.by("operator-alice", "ps").returncode == 0
    assert home.by("viewer-bob", "ps").returncode == 0
    killed = home.by("viewer-bob", "kill", "some-job")
    assert killed.returncode == 4 and "a viewer's certificate is for looking" in killed.stderr, killed.stderr
    assert "cairn cert operator" in killed.stderr
    node = home.by("node-n1", "ps")
    assert node.returncode == 2 and "node" in node.stderr, node.stderr


def test_beyond_this_machine_there_is_no_plaintext(home):
    for args in (["cairn", "--addr", "192.0.2.1:7000", "ps"], ["cairn-agent", "--coordinator", "192.0.2.1:7000"],
                 ["cairnd", "--listen", "0.0.0.0:0"]):
        env = {**home.env, "CAIRN_HOME": str(home.dir / "empty")}
        done = subprocess.run([BIN / args[0], *args[1:]], env=env, capture_output=True, text=True, timeout=20,
                              check=False)
        assert done.returncode == 2 and "--tls-cert" in done.stderr and "cairn cert" in done.stderr, done.stderr


def test_variables_name_the_files_too(home):
    env = {**home.env, "CAIRN_ADDR": home.address, "CAIRN_TLS_CERT": str(home.tls / "viewer-bob.crt"),
           "CAIRN_TLS_KEY": str(home.tls / "viewer-bob.key"), "CAIRN_TLS_CA": str(home.tls / "ca.crt")}
    done = subprocess.run([BIN / "cairn", "ps"], env=env, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr


CONFIG = """\
[ca]
default_ca = one
[one]
database = {dir}/index
new_certs_dir = {dir}
serial = {dir}/serial
default_md = sha256
policy = any
unique_subject = no
[any]
commonName = optional
[node]
basicConstraints = critical,CA:FALSE
keyUsage = critical,digitalSignature
extendedKeyUsage = clientAuth
subjectAltName = URI:cairn://lab/node/n2
authorityKeyIdentifier = keyid
"""


def brief_certificate(home, seconds, since="20200101000000Z", stem="node-brief", text=CONFIG):
    """One that expires so soon; node-brief is node n2's. The authority's key lies in home.dir, where no agent's
    certificate is to be renewed."""
    authority = next(path for path in (home.dir / "ca.key", home.tls / "ca.key") if path.exists())
    folder = home.dir / "brief"
    folder.mkdir()
    (folder / "index").touch()
    (folder / "serial").write_text("1000\n", encoding="utf-8")
    (folder / "conf").write_text(text.format(dir=folder), encoding="utf-8")
    key, cert = home.tls / "node-n2.key", home.tls / f"{stem}.crt"
    end = time.strftime("%y%m%d%H%M%SZ", time.gmtime(time.time() + seconds))
    subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", "/CN=x", "-out", folder / "csr"], check=True)
    subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", folder / "conf", "-extensions", "node", "-in",
                    folder / "csr", "-cert", home.tls / "ca.crt", "-keyfile", authority, "-startdate",
                    since, "-enddate", end, "-out", cert], check=True, capture_output=True)
    (home.tls / f"{stem}.key").write_bytes(key.read_bytes())
    os.chmod(home.tls / f"{stem}.key", 0o600)


def test_a_session_ends_with_its_certificate(home):
    (home.tls / "ca.key").rename(home.dir / "ca.key")  # else it would be renewed
    brief_certificate(home, 15)
    home.start_agent(*home.files("node-brief"))
    until(lambda: "n2" in home.cairn("node", "ls").stdout, 14, "the agent joined")
    until(lambda: "expired since it connected" in home.log_of("cairn-agent"), 40, "its session ended")
    until(lambda: "n2" not in ready(home), 30, "it is away")
    (home.tls / "node-brief.crt").write_bytes((home.tls / "node-n2.crt").read_bytes())
    until(lambda: "the files of TLS have changed" in home.log_of("cairn-agent") and "n2" in ready(home), 20,
          "with a new one it is back by itself")


def not_after(cert):
    return subprocess.run(["openssl", "x509", "-in", cert, "-noout", "-enddate"], capture_output=True, text=True,
                          check=True).stdout


def test_the_coordinator_renews_its_own_certificate():
    with TlsHome() as home:
        home.kill("cairnd")
        until(lambda: not home.pids("cairnd"), 10, "it is gone")
        text = CONFIG.replace("clientAuth", "serverAuth").replace("node/n2", "coordinator/main,DNS:cairnd")
        brief_certificate(home, 5 * 86400, stem="coordinator", text=text)
        old = not_after(home.tls / "coordinator.crt")
        (home.home / "cairnd.addr").unlink()
        home.start("cairnd", "--listen", "127.0.0.1:0", *home.files("coordinator"))
        until(lambda: (home.home / "cairnd.addr").exists() and home.cairn("ps", check=False).returncode == 0, 20, "it serves")
        assert not_after(home.tls / "coordinator.crt") != old and "is renewed" in home.log_of("cairnd")
        home.address = (home.home / "cairnd.addr").read_text(encoding="utf-8")
        assert home.by("viewer-bob", "ps").returncode == 0


def test_up_makes_what_it_needs_to_listen_beyond_this_machine():
    home = Home()
    home.cairn("up", "--slots", "4", "--listen", "0.0.0.0:0")
    with home:  # it is up already
        port = (home.home / "cairnd.addr").read_text(encoding="utf-8").rpartition(":")[2]
        tls = home.home / "tls"
        assert {path.name for path in tls.iterdir()} == {"ca.crt", "ca.key", "coordinator.crt", "coordinator.key"}
        home.cairn("cert", "operator", "alice")
        done = home.cairn("--addr", f"127.0.0.1:{port}", "--tls-cert", tls / "operator-alice.crt", "--tls-key",
                          tls / "operator-alice.key", "--tls-ca", tls / "ca.crt", "node", "ls")
        assert "ready" in done.stdout
