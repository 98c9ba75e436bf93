"""Servers that stand in for those of others: receivers of webhooks, which answer as they are told, and an SMTP server."""
import http.server
import socket
import socketserver
import ssl
import subprocess
import threading
import time


class Receiver:
    """An HTTP server. answers: what it does with one request after another, the last for all that follow:
    a status code; (code, {header: value}); (code, headers, body); a number of seconds to sleep first, as a float; "huge",
    an endless body; "drop", nothing. got: [(headers, body)]."""

    def __init__(self, answers=(200,), tls=None):
        self.answers, self.got, self.lock = list(answers), [], threading.Lock()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
                with outer.lock:
                    outer.got.append((dict(self.headers), body))
                    what = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                outer.answer(self, what)

            def log_message(self, *_):
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_):
                pass  # who asks hangs up: that is what is tested

        self.server = Server(("127.0.0.1", 0), Handler)
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*tls)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.port = self.server.server_address[1]
        self.path = "/services/T000/abcdefghijkl"
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}{self.path}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @staticmethod
    def answer(request, what):
        if isinstance(what, float):
            time.sleep(what)
            what = 200
        if what == "drop":
            return
        if what == "huge":
            request.send_response(200)
            request.end_headers()
            while True:
                request.wfile.write(b"x" * 65536)
        code, headers, body = (what, {}, b"") if isinstance(what, int) else (*what, b"")[:3]
        request.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, value)
        request.end_headers()
        request.wfile.write(body)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


class Mailbox:
    """An SMTP server that takes all mail, on plain sockets. refuses: so many at first. got: [(from, [to], text)]."""

    def __init__(self, refuses=0):
        self.got, self.refuses = [], refuses
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def say(self, line):
                self.wfile.write(line.encode() + b"\r\n")

            def handle(self):
                if outer.refuses > 0:
                    outer.refuses -= 1
                    return self.say("421 not now")
                self.say("220 stand-in")
                sender, to = None, []
                for line in iter(self.rfile.readline, b""):
                    word = line.decode().strip()
                    if word.upper().startswith("MAIL FROM:"):
                        sender = word[10:].split()[0]
                    elif word.upper().startswith("RCPT TO:"):
                        to.append(word[8:].split()[0])
                    elif word.upper() == "DATA":
                        self.say("354 go on")
                        lines = []
                        for text in iter(self.rfile.readline, b".\r\n"):
                            lines.append(text[1:] if text.startswith(b"..") else text)
                        outer.got.append((sender, to, b"".join(lines).decode()))
                    elif word.upper() == "QUIT":
                        return self.say("221 bye")
                    self.say("250 fine")
                return None

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads, allow_reuse_address = True, True

        self.server = Server(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


REFUSING = []  # sockets, for as long as the tests run


def closed_port():
    """One that refuses whoever comes: bound, and never listened at. It is kept, so that no other program gets it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    REFUSING.append(bound)
    return bound.getsockname()[1]


def certificate(folder, name, address):
    """A self-made certificate for an address: (file, key)."""
    cert, key = folder / f"{name}.crt", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}", "-keyout", key, "-out", cert],
                   check=True, capture_output=True)
    return cert, key
