"""A foreign client (Debian's grpcio) against our server: what stock tools expect of a gRPC server."""
import queue
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from home import until

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin"))
SERVER = BIN.parent / "tests" / "chat_server"
TOKEN = "s3cret"
LIMIT = 4 * 1024 * 1024  # LIMIT_MESSAGE_BYTES


@pytest.fixture(scope="session", name="pb")
def messages(tmp_path_factory):
    """Python messages of the protos, made by protoc as a user would."""
    out = tmp_path_factory.mktemp("pb")
    for folder, names in ((ROOT / "tests/unit/rpc", ["chat.proto"]),
                          (ROOT / "proto", ["grpc/health/v1/health.proto",
                                            "grpc/reflection/v1/reflection.proto"])):
        for name in names:  # flat names: a folder "grpc" would hide the package
            flat = out / name.replace("/", "_")
            flat.write_text((folder / name).read_text(encoding="utf-8"), encoding="utf-8")
    subprocess.run(["protoc", f"-I{out}", f"--python_out={out}", *out.glob("*.proto")], check=True)
    sys.path.insert(0, str(out))

    class Messages:
        import chat_pb2 as chat
        import grpc_health_v1_health_pb2 as health
        import grpc_reflection_v1_reflection_pb2 as reflection
    return Messages


class Server:
    def __init__(self, folder, *args, preexec=None):
        self.socket = folder / "s"
        self.child = subprocess.Popen([SERVER, "--unix", self.socket, "--tcp", "127.0.0.1:0", *args],
                                      stdout=subprocess.PIPE, text=True, preexec_fn=preexec)
        word, port = self.child.stdout.readline().split()
        assert word == "ready"
        self.tcp = f"127.0.0.1:{port}"

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
        rest = self.child.communicate(timeout=20)[0]
        assert self.child.returncode == 0
        assert rest == "stopped\n"


class Client:
    """Generic calls, so that no generated stub is needed."""

    def __init__(self, target, pb, token=None, tls=None):
        options = [("grpc.enable_http_proxy", 0)]
        self.channel = grpc.secure_channel(target, tls, options) if tls else grpc.insecure_channel(target, options)
        self.pb = pb
        self.metadata = (("authorization", f"Bearer {token}"),) if token else None

    def call(self, kind, path, request, reply):
        make = getattr(self.channel, kind)(path, request.SerializeToString, reply.FromString)
        return lambda value, **kw: make(value, metadata=self.metadata, **kw)

    def chat(self, kind, name, request, reply):
        return self.call(kind, f"/cairn.test.Chat/{name}", request, reply)

    def echo(self, timeout=10, **fields):
        chat = self.pb.chat
        return self.chat("unary_unary", "Echo", chat.EchoRequest, chat.EchoReply)(
            chat.EchoRequest(**fields), timeout=timeout)

    def count(self, timeout=10, **fields):
        chat = self.pb.chat
        return self.chat("unary_stream", "Count", chat.CountRequest, chat.Number)(
            chat.CountRequest(**fields), timeout=timeout)

    def talk(self, requests, timeout=10):
        chat = self.pb.chat
        return self.chat("stream_stream", "Talk", chat.TalkMessage, chat.TalkMessage)(
            requests, timeout=timeout)


@pytest.fixture(name="server", params=["inline", "mailbox"])
def running_server(request, tmp_path):
    server = Server(tmp_path, "--token", TOKEN, *(["--mailbox"] if request.param == "mailbox" else []))
    yield server
    server.stop()


@pytest.fixture(name="client", params=["tcp", "unix"])
def connected_client(request, server, pb):
    if request.param == "tcp":
        client = Client(server.tcp, pb, TOKEN)
    else:
        client = Client(f"unix:{server.socket}", pb)
    client.kind = request.param
    yield client
    client.channel.close()


def code_of(call):
    with pytest.raises(grpc.RpcError) as caught:
        list(call) if hasattr(call, "__iter__") else call()
    return caught.value.code(), caught.value.details()


def test_unary(client):
    reply = client.echo(payload=b"x" * 1000)
    assert reply.payload == b"x" * 1000
    assert reply.peer_pid == (os.getpid() if client.kind == "unix" else 0)
    assert client.echo(payload=os.urandom(3_000_000)).payload  # several slices


def test_error_status_and_its_text(client):
    assert code_of(lambda: client.echo(fail_code=9)) == (grpc.StatusCode.FAILED_PRECONDITION,
                                                         "asked to fail")


def test_server_stream(client):
    assert [n.value for n in client.count(count=40)] == list(range(40))
    assert list(client.count(count=0)) == []


def test_client_stream(client):
    number = client.pb.chat.Number
    total = client.chat("stream_unary", "Sum", number, number)
    assert total(iter([number(value=i) for i in range(100)]), timeout=10).value == 4950
    assert total(iter(()), timeout=10).value == 0


def test_bidirectional_stream(client):
    words = queue.Queue()
    stream = client.talk(iter(words.get, None))
    for i in range(100):
        words.put(client.pb.chat.TalkMessage(text=str(i)))
    assert [next(stream).text for _ in range(100)] == [str(i) for i in range(100)]
    words.put(None)
    assert list(stream) == []
    assert stream.code() == grpc.StatusCode.OK

    words = queue.Queue()
    words.put(client.pb.chat.TalkMessage(text="quit"))
    assert code_of(client.talk(iter(words.get, None))) == (grpc.StatusCode.ABORTED, "as you wish")
    words.put(None)


def test_a_stream_is_accepted_before_its_first_message(client):
    words = queue.Queue()
    stream = client.talk(iter(words.get, None))
    accepted = threading.Event()
    threading.Thread(target=lambda: (stream.initial_metadata(), accepted.set()), daemon=True).start()
    assert accepted.wait(10)
    words.put(None)
    assert list(stream) == []


def test_deadline(client):
    assert code_of(lambda: client.echo(hold=True, timeout=0.3))[0] == \
        grpc.StatusCode.DEADLINE_EXCEEDED
    assert code_of(client.count(count=1, hold=True, timeout=0.3))[0] == \
        grpc.StatusCode.DEADLINE_EXCEEDED
    until(lambda: client.echo().cancelled >= 2 and client.echo().open == 0, 10,
          "the server saw both deadlines")


def test_cancel_reaches_the_server(client):
    stream = client.count(count=3, hold=True, timeout=None)
    assert [next(stream).value for _ in range(3)] == [0, 1, 2]
    assert client.echo().open == 1
    stream.cancel()
    until(lambda: client.echo().cancelled == 1 and client.echo().open == 0, 10,
          "cancellation at the server")


def test_a_request_over_the_limit_is_refused_and_the_connection_lives(client):
    assert code_of(lambda: client.echo(payload=b"x" * (LIMIT + 100)))[0] == \
        grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.echo(payload=b"y").payload == b"y"


def test_a_reader_that_does_not_read_loses_its_stream_not_the_server_its_memory(client):
    stream = client.count(count=1000, size=64 * 1024)
    # Nothing is read before the handler has sent all it will: a reader that keeps up loses nothing.
    # The server runs one handler at a time, so that an echo which sees the stream open came after.
    until(lambda: client.echo().open == 1, 10, "the server's handler is through")
    got = []
    with pytest.raises(grpc.RpcError) as caught:
        for number in stream:
            got.append(number.value)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert got == list(range(len(got)))  # an unbroken beginning
    until(lambda: client.echo().open == 0, 10, "the server let go of the stream")


def test_unknown_method_and_malformed_request(client):
    raw = client.channel.unary_unary
    assert code_of(lambda: raw("/cairn.test.Chat/Nope")(b"", timeout=10, metadata=client.metadata)
                   )[0] == grpc.StatusCode.UNIMPLEMENTED
    assert code_of(lambda: raw("/no.such.Service/Echo")(b"", timeout=10, metadata=client.metadata)
                   )[0] == grpc.StatusCode.UNIMPLEMENTED
    assert code_of(lambda: raw("/cairn.test.Chat/Echo")(b"\xff\xff\xff", timeout=10,
                                                         metadata=client.metadata)
                   )[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_health(client):
    health = client.pb.health
    check = client.call("unary_unary", "/grpc.health.v1.Health/Check",
                        health.HealthCheckRequest, health.HealthCheckResponse)
    serving = health.HealthCheckResponse.SERVING
    assert check(health.HealthCheckRequest(), timeout=10).status == serving
    assert check(health.HealthCheckRequest(service="cairn.test.Chat"), timeout=10).status == serving
    assert code_of(lambda: check(health.HealthCheckRequest(service="nope"), timeout=10))[0] == \
        grpc.StatusCode.NOT_FOUND
    watch = client.call("unary_stream", "/grpc.health.v1.Health/Watch",
                        health.HealthCheckRequest, health.HealthCheckResponse)
    stream = watch(health.HealthCheckRequest(service="cairn.test.Chat"))
    assert next(stream).status == serving
    stream.cancel()
    stream = watch(health.HealthCheckRequest(service="nope"))
    assert next(stream).status == health.HealthCheckResponse.SERVICE_UNKNOWN
    stream.cancel()


def test_health_watch_sees_the_server_end(tmp_path, pb):
    server = Server(tmp_path)
    client = Client(server.tcp, pb)
    watch = client.call("unary_stream", "/grpc.health.v1.Health/Watch",
                        pb.health.HealthCheckRequest, pb.health.HealthCheckResponse)
    stream = watch(pb.health.HealthCheckRequest(), timeout=20)
    assert next(stream).status == pb.health.HealthCheckResponse.SERVING
    server.stop()
    assert next(stream).status == pb.health.HealthCheckResponse.NOT_SERVING
    assert code_of(stream)[0] == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
def test_reflection(client, version):
    module = client.pb.reflection  # both versions have the same bytes
    info = client.call("stream_stream",
                       f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
                       module.ServerReflectionRequest, module.ServerReflectionResponse)

    def ask(**fields):
        [answer] = info(iter([module.ServerReflectionRequest(**fields)]), timeout=10)
        return answer

    services = {row.name for row in ask(list_services="").list_services_response.service}
    assert services == {"cairn.test.Chat", "grpc.health.v1.Health",
                        "grpc.reflection.v1.ServerReflection",
                        "grpc.reflection.v1alpha.ServerReflection"}
    assert ask(file_containing_symbol="no.such").error_response.error_code == \
        grpc.StatusCode.NOT_FOUND.value[0]
    assert ask(all_extension_numbers_of_type="x").error_response.error_code == \
        grpc.StatusCode.UNIMPLEMENTED.value[0]

    # A file comes with its imports.
    answer = ask(file_by_filename="cairn/v1/control.proto").file_descriptor_response
    names = [descriptor_pb2.FileDescriptorProto.FromString(raw).name
             for raw in answer.file_descriptor_proto]
    assert names[0] == "cairn/v1/control.proto"
    assert "cairn/v1/common.proto" in names

    # What grpcurl does: a call made from reflection's answer alone.
    answer = ask(file_containing_symbol="cairn.test.Chat").file_descriptor_response
    pool = descriptor_pool.DescriptorPool()
    for raw in answer.file_descriptor_proto:
        pool.AddSerializedFile(raw)
    service = pool.FindServiceByName("cairn.test.Chat")
    method = service.methods_by_name["Echo"]
    factory = message_factory.MessageFactory(pool)
    request, reply = factory.GetPrototype(method.input_type), factory.GetPrototype(method.output_type)
    echo = client.call("unary_unary", f"/{service.full_name}/Echo", request, reply)
    assert echo(request(payload=b"reflected"), timeout=10).payload == b"reflected"
    proto = descriptor_pb2.FileDescriptorProto()
    service.file.CopyToProto(proto)
    assert {m.name: (m.client_streaming, m.server_streaming) for m in proto.service[0].method} == {
        "Echo": (False, False), "Count": (False, True), "Sum": (True, False), "Talk": (True, True)}


def test_tcp_needs_the_token(server, pb):
    for token in (None, "wrong", TOKEN + "x", TOKEN[:-1]):
        client = Client(server.tcp, pb, token)
        assert code_of(lambda: client.echo())[0] == grpc.StatusCode.UNAUTHENTICATED
        assert code_of(client.talk(iter([pb.chat.TalkMessage(text="a")])))[0] == \
            grpc.StatusCode.UNAUTHENTICATED
        client.channel.close()


def test_a_second_server_takes_neither_socket_nor_port(server, tmp_path, pb):
    second = subprocess.run([SERVER, "--unix", server.socket], capture_output=True, text=True,
                            timeout=20, check=False)
    assert second.returncode == 1
    second = subprocess.run([SERVER, "--tcp", server.tcp], capture_output=True, text=True,
                            timeout=20, check=False)
    assert second.returncode == 1
    assert Client(f"unix:{server.socket}", pb).echo(payload=b"still").payload == b"still"
    assert (server.socket.stat().st_mode & 0o777) == 0o600


def test_a_killed_server_leaves_a_socket_that_the_next_one_replaces(tmp_path, pb):
    server = Server(tmp_path)
    server.child.kill()
    server.child.communicate()
    assert server.socket.exists()
    server = Server(tmp_path)
    assert Client(f"unix:{server.socket}", pb).echo(payload=b"new").payload == b"new"
    server.stop()
    assert not server.socket.exists()


def test_running_out_of_descriptors_does_not_end_the_listeners(tmp_path, pb):
    def limit():
        resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48))
    server = Server(tmp_path, preexec=limit)
    held = []
    for _ in range(80):
        held.append(socket.create_connection(("127.0.0.1", int(server.tcp.rsplit(":", 1)[1]))))
    for _ in range(20):
        held.append(socket.socket(socket.AF_UNIX))
        held[-1].connect(str(server.socket))
    for connection in held:
        connection.close()
    for target in (server.tcp, f"unix:{server.socket}"):
        def answered():
            client = Client(target, pb)
            try:
                return client.echo(payload=b"a", timeout=2).payload == b"a"
            except grpc.RpcError:
                return False
            finally:
                client.channel.close()
        until(answered, 30, f"an answer on {target} after the descriptors came back")
    server.stop()


def test_rubbish_on_the_wire_does_no_harm(server, pb):
    port = int(server.tcp.rsplit(":", 1)[1])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    for i in range(100):
        data = os.urandom(1 + i * 7)
        with socket.create_connection(("127.0.0.1", port)) as connection:
            try:
                connection.sendall((preface if i % 2 else b"") + data)
            except OSError:
                pass  # closed on us already
    client = Client(server.tcp, pb, TOKEN)
    assert client.echo(payload=b"fine").payload == b"fine"


def test_compressed_requests_are_bounded_after_decompression(client):
    """4 MiB on the wire must not become gigabytes: either refused as such or by its real size."""
    chat = client.pb.chat
    echo = client.chat("unary_unary", "Echo", chat.EchoRequest, chat.EchoReply)
    big = chat.EchoRequest(payload=b"\0" * (4 * LIMIT))
    assert code_of(lambda: echo(big, timeout=20, compression=grpc.Compression.Gzip))[0] in (
        grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
    assert client.echo(payload=b"y").payload == b"y"


@pytest.fixture(name="tls")
def server_with_tls(tmp_path):
    """A server with TLS, and the folder of its certificates."""
    folder = tmp_path / "ca"
    for args in (["init"], ["node", "n1"]):
        subprocess.run([BIN / "cairn", "cert", *args, "--dir", folder], check=True, capture_output=True)
    server = Server(tmp_path, "--cert", folder / "coordinator.crt", "--key", folder / "coordinator.key",
                    "--ca", folder / "ca.crt")
    yield server, folder
    server.stop()


def test_a_foreign_client_reaches_the_tls_port(tls, pb):
    server, folder = tls
    ca, cert, key = ((folder / name).read_bytes() for name in ("ca.crt", "node-n1.crt", "node-n1.key"))
    for credentials in (grpc.ssl_channel_credentials(ca), grpc.ssl_channel_credentials(ca, key, cert)):
        client = Client(server.tcp, pb, tls=credentials)
        assert client.echo(payload=b"x" * 100_000).payload == b"x" * 100_000
        client.channel.close()
    client = Client(server.tcp, pb)
    assert code_of(lambda: client.echo(payload=b"x"))[0] == grpc.StatusCode.UNAVAILABLE


def test_tls_is_1_2_or_1_3(tls):
    server, folder = tls

    def handshake(version):
        done = subprocess.run(["openssl", "s_client", "-connect", server.tcp, "-CAfile", folder / "ca.crt", version,
                               "-cipher", "ALL:@SECLEVEL=0", "-alpn", "h2", "-verify_return_error"],
                              stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
        return done.returncode == 0 and b"Verify return code: 0 (ok)" in done.stdout
    assert [handshake(v) for v in ("-tls1", "-tls1_1", "-tls1_2", "-tls1_3")] == [False, False, True, True]


def test_rubbish_on_the_tls_port_does_no_harm(tls, pb):
    server, folder = tls
    port = int(server.tcp.rsplit(":", 1)[1])
    for i in range(100):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            try:
                connection.sendall((b"\x16\x03\x01" if i % 2 else b"") + os.urandom(1 + i * 7))
            except OSError:
                pass  # closed on us already
    client = Client(server.tcp, pb, tls=grpc.ssl_channel_credentials((folder / "ca.crt").read_bytes()))
    assert client.echo(payload=b"fine").payload == b"fine"
