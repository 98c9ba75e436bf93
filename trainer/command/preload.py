"""A Python interpreter that has imported what a job names, and forks a process of the job's program when it is asked to: the imports,
seconds for some libraries, are done before. A worker starts it as `python -c TEXT MODULE...` with one end of a socket pair as its
stdin, and asks by one message for each process.

A message is texts, each ended by NUL: the worker's number, the folder to work in, how many arguments there are, these, and the
environment. It carries the descriptor that the process is to write to. The answer is the process's number, or "!" and why it can't be.
The process is the worker's child, not this one's.

It is safe to fork as long as this process has one thread and has not touched a GPU. That is looked at before each fork; if it doesn't
hold, the worker is told, and starts its processes cold from then on."""
import array
import atexit
import ctypes
import gc
import importlib
import os
import runpy
import signal
import socket
import sys
import threading
import time

PR_SET_PDEATHSIG = 1
MESSAGE_MAX = 1 << 20
ADOPTION_TRIES = 10000

# What the first optimizer and the first DistributedDataParallel would import, of torch.
ALSO = {"torch": ("torch._dynamo", "torch.optim", "torch.nn.parallel", "torch.distributed")}


def unsafe():
    """Why this process must not fork; empty if it may."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"an import started {len(threads) - 1} threads"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "an import has opened a GPU"
    return ""


def run(argv):
    """Runs `python ARGV...` in this process."""
    if argv[0] == "-m":
        sys.argv = argv[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = argv
    sys.path[0] = os.path.dirname(os.path.abspath(argv[0]))
    main = type(sys)("__main__")
    main.__dict__.update(__file__=argv[0], __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with open(argv[0], "rb") as file:
        code = compile(file.read(), argv[0], "exec")
    exec(code, main.__dict__)


def code_of(error):
    """The exit code of SystemExit, as the interpreter has it."""
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    print(error.code, file=sys.stderr)
    return 1


def run_to_the_end(argv):
    """Runs the program and ends this process as the interpreter would, but for taking libraries apart: some complain of objects that
    were made before the fork, and that would be the last words of a program that failed."""
    code = 0
    try:
        run(argv)
        threading._shutdown()
    except SystemExit as error:
        code = code_of(error)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    try:
        atexit._run_exitfuncs()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def read_order(data):
    worker, workdir, count, *texts = data.decode(errors="surrogateescape").split("\0")[:-1]
    return int(worker), workdir, texts[:int(count)], dict(text.split("=", 1) for text in texts[int(count):])


def become(order, said, prctl):
    """In the new process: what a fresh interpreter would be, with the imports done."""
    worker, workdir, argv, environment = order
    os.setpgid(0, 0)
    for _ in range(ADOPTION_TRIES):  # the process in between is about to end
        if os.getppid() == worker:
            break
        time.sleep(0.0005)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != worker:
        os._exit(127)  # it has ended
    empty = os.open("/dev/null", os.O_RDONLY)
    for source, target in ((empty, 0), (said, 1), (said, 2)):
        os.dup2(source, target)
    os.closerange(3, 256)
    os.chdir(workdir)
    os.environ.clear()
    os.environ.update(environment)
    if "numpy" in sys.modules:  # Python's own generator does so by itself
        sys.modules["numpy"].random.seed()
    run_to_the_end(argv)


def fork():
    """Forks twice: the process in between ends at once, which makes the new one a child of the worker. Returns its number."""
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid > 0:
            os.write(tell, str(pid).encode())
            os._exit(0)
        return 0
    os.close(tell)
    pid = int(os.read(told, 32))
    os.waitpid(between, 0)
    os.close(told)
    return pid


def serve(channel):
    """Returns in each new process, with its order and what it writes to; ends with the worker."""
    while True:
        data, ancillary, _, _ = channel.recvmsg(MESSAGE_MAX, socket.CMSG_SPACE(4))
        if not data:
            os._exit(0)
        said = array.array("i", ancillary[0][2])[0]
        order = read_order(data)
        why = unsafe()
        if why:
            channel.send(f"!{why}".encode())
        else:
            pid = fork()
            if pid == 0:
                return order, said
            channel.send(str(pid).encode())
        os.close(said)


def prepare(modules):
    """Imports; returns why that failed, or empty."""
    for name in modules:
        try:
            importlib.import_module(name)
        except BaseException as error:  # whatever a module does when it is imported
            return f"import {name}: {type(error).__name__}: {error}"
        for more in ALSO.get(name, ()):
            try:
                importlib.import_module(more)
            except ImportError:
                pass
    gc.collect()
    gc.freeze()
    return unsafe()


def main():
    channel = socket.socket(fileno=os.dup(0))
    libc = ctypes.CDLL(None)
    why = prepare(sys.argv[1:])
    channel.send((f"!{why}" if why else "ready").encode())
    if why:
        os._exit(0)
    order, said = serve(channel)
    channel.close()
    become(order, said, libc.prctl)


main()
