"""A program of a user's for tests: a session, and loaders of 8 workers started in one of the three ways, epoch after epoch; gRPC beside it.

    loaders_program.py WAY EPOCHS [grpc]
"""
import sys
import time

import cairn
import cairn.torch
import torch
from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.tensor([float(index)])


def serve():
    """A server of gRPC's in this process, and a call to it."""
    from concurrent import futures

    import grpc

    class Echo(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Echo(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    channel = grpc.insecure_channel(f"127.0.0.1:{port}")
    return server, channel.unary_unary("/echo/echo")


def main(way, epochs, more):
    server, call = serve() if more else (None, None)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with cairn.Session.open() as session:
        assert not session.alone
        state = cairn.torch.State(model=model, optimizer=optimizer)
        loader = DataLoader(Data(), batch_size=2, num_workers=8, multiprocessing_context=way)
        total = epochs * 8
        begin = time.monotonic()
        for step, x in cairn.torch.steps(session, state, total, loader):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
            if call:
                assert call(b"hello", timeout=30) == b"hello"
    if server:
        server.stop(None)
    print(f"done {total} steps in {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
