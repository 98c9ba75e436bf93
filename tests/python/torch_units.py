"""Small tests of cairn.torch, run by the Python that has PyTorch: each function is one; prints "ok NAME" after each."""
import collections
import os
import sys
import tempfile
import traceback
import warnings

os.environ["CAIRN_FAKE"] = tempfile.mkdtemp()
import fake_cairn  # noqa: E402,F401
import torch  # noqa: E402
import torch.nn as nn  # noqa: E402

import cairn  # noqa: E402
import cairn.torch  # noqa: E402
from cairn.torch import gather, loop, randoms  # noqa: E402


def folder():
    os.environ["CAIRN_FAKE"] = tempfile.mkdtemp()


def refused(words, run, kind=cairn.Error):
    try:
        run()
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def update(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def saved_names(state):
    return [piece.name for piece in state.gather()[0]]


def names_say_what_they_are():
    model = nn.Sequential(collections.OrderedDict(a=nn.Linear(2, 3), n=nn.BatchNorm1d(3)))
    optimizer = torch.optim.AdamW(model.parameters())
    update(model, optimizer)
    state = cairn.torch.State(model=model, optimizer=optimizer)
    pieces = {piece.name: piece for piece in state.gather()[0]}
    assert pieces["model.a.weight"].kind == cairn.REPLICATED
    assert pieces["model.n.running_mean"].kind == cairn.PRIVATE and pieces["model.n.running_mean"].flags == cairn.COPY_NOW
    assert pieces["optimizer.state.a.weight.exp_avg"].kind == cairn.REPLICATED
    assert pieces["optimizer.state.n.bias.step"].shape == ()
    two = cairn.torch.State(model={"net": model, "average": nn.Linear(1, 1)}, private="model.average.*")
    kinds = {piece.name: piece.kind for piece in two.gather()[0]}
    assert kinds["model.net.a.weight"] == cairn.REPLICATED and kinds["model.average.bias"] == cairn.PRIVATE


def compiled_and_wrapped_models_have_the_names_of_plain_ones():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain = saved_names(cairn.torch.State(model=model))
    assert saved_names(cairn.torch.State(model=torch.compile(model))) == plain
    assert saved_names(cairn.torch.State(model=nn.DataParallel(model))) == plain


def long_names_fit():
    name = "x" * 200
    assert len(gather.short(name)) <= 127 and gather.short(name) != gather.short(name + "y") and gather.short("a") == "a"


def what_cannot_be_held_is_named():
    linear = nn.Linear(1, 1)
    state = lambda **extra: cairn.torch.State(model=linear, extra=extra).gather()  # noqa: E731
    blob = lambda **extra: cairn.torch.State(model=linear, extra=extra)._blob(state(**extra)[1])  # noqa: E731
    refused("extra.f.g is a builtins.function", lambda: blob(f={"g": lambda: 1}))
    refused("extra.n is a int", lambda: state(n=1))
    refused("extra.s is sparse", lambda: state(s=torch.eye(2).to_sparse()))
    refused("extra.m is on the meta device", lambda: state(m=torch.empty(2, device="meta")))
    refused("extra.c is torch.complex32", lambda: state(c=torch.zeros(2, dtype=torch.complex32)))
    refused("extra.d has 9 dimensions", lambda: state(d=torch.zeros((1,) * 9)))
    refused("model.weight has no shape yet", lambda: cairn.torch.State(model=nn.LazyLinear(2)).gather())


def every_dtype_and_shape_comes_back():
    folder()
    made = {name: torch.arange(6).to(dtype) for name, dtype in gather.BY_NAME.items() if name != "bool"}
    made |= {"bool": torch.tensor([True, False]), "scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3), "across": torch.arange(6.0).view(2, 3).t(),
             "last": torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last), "conj": torch.tensor([1 + 2j, 3 - 1j]).conj()}
    want = {name: tensor.clone() for name, tensor in made.items()}
    state = cairn.torch.State(model=nn.Linear(1, 1), extra=made)
    session = cairn.Session.open()
    state.restore(session, 2)
    state.step(session, 1)
    state.copied()
    for tensor in made.values():
        if tensor.numel():
            tensor.copy_(torch.zeros_like(tensor))
    fresh = cairn.torch.State(model=nn.Linear(1, 1), extra=made)
    assert fresh.restore(cairn.Session.open(), 2) == 1
    for name, tensor in want.items():
        now = made[name]
        assert now.dtype == tensor.dtype and now.shape == tensor.shape
        assert torch.equal(now.resolve_conj().contiguous().view(-1).view(torch.uint8) if now.dim() else now,
                           tensor.resolve_conj().contiguous().view(-1).view(torch.uint8) if now.dim() else tensor), name


def extras_come_back_in_place():
    folder()
    import numpy

    class Counter:
        def __init__(self):
            self.n = 0

        def state_dict(self):
            return {"n": self.n, "t": torch.full((2,), float(self.n))}

        def load_state_dict(self, found):
            self.n = found["n"]
            assert torch.equal(found["t"], torch.full((2,), float(self.n)))

    def things():
        return {"count": Counter(), "seen": {"a": 1}, "list": [1], "g": torch.Generator().manual_seed(1), "n": numpy.random.default_rng(1)}

    def draw(found):
        return torch.rand(2, generator=found["g"]).tolist(), found["n"].random(2).tolist()
    first = things()
    state = cairn.torch.State(model=nn.Linear(1, 1), extra=first)
    session = cairn.Session.open()
    state.restore(session, 2)
    first["count"].n, first["seen"]["b"] = 7, (1, float("nan"))
    first["list"].append({"x": b"y"})
    draw(first)
    state.step(session, 1)
    state.copied()
    after = draw(first)
    second = things()
    seen = second["seen"]
    assert cairn.torch.State(model=nn.Linear(1, 1), extra=second).restore(cairn.Session.open(), 2) == 1
    assert second["count"].n == 7 and second["seen"] is seen and repr(seen) == repr(first["seen"]) and second["list"] == first["list"]
    assert draw(second) == after


def modules_in_extra_come_back():
    folder()
    model = nn.Linear(2, 2)
    state, session = cairn.torch.State(model=model, extra={"ema": torch.optim.swa_utils.AveragedModel(model)}), cairn.Session.open()
    state.restore(session, 2)
    state.step(session, 1)
    state.copied()
    average = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 2))
    assert cairn.torch.State(model=nn.Linear(2, 2), extra={"ema": average}).restore(cairn.Session.open(), 2) == 1
    assert torch.equal(average.module.weight, model.weight)


def an_optimizer_that_grows_is_refused_at_once():
    folder()
    model = nn.Linear(2, 2)
    state = cairn.torch.State(model=model, optimizer=torch.optim.LBFGS(model.parameters()))
    refused("optimizer is LBFGS", lambda: state.restore(cairn.Session.open(), 2), cairn.Invalid)
    assert state.restore(cairn.Session(None), 2) == 0


def tied_weights_are_saved_once():
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    pieces, tree = cairn.torch.State(model=model).gather()
    assert [piece.name for piece in pieces] == ["model.embedding.weight"]
    assert tree["aliases"] == {"model.head.weight": "model.embedding.weight"}
    folder()
    session = cairn.Session.open()
    state = cairn.torch.State(model=model)
    state.restore(session, 1)
    state.step(session, 1)
    state.copied()
    untied = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    cairn.torch.State(model=untied).restore(cairn.Session.open(), 1)
    assert torch.equal(untied["head"].weight, model["head"].weight)
    found = cairn.torch.Tensors(cairn.Session.open().restore())
    assert set(found.under("model.")) == {"embedding.weight", "head.weight"}


def nothing_is_saved_before_the_first_update():
    folder()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())
    state, session = cairn.torch.State(model=model, optimizer=optimizer), cairn.Session.open()
    assert state.restore(session, 5) == 0
    assert state.step(session, 1) == 0 and session._connection.rows is None
    update(model, optimizer)
    assert state.step(session, 2) == 1 and len(session._connection.rows) == 8
    update(model, optimizer)  # waits for the copy
    assert session._connection.saved == 2


def tensors_that_come_or_change_later_are_named():
    folder()
    model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
    optimizer = torch.optim.Adam(model.parameters())
    state, session = cairn.torch.State(model=model, optimizer=optimizer), cairn.Session.open()
    state.restore(session, 5)
    update(model["a"], optimizer)
    state.step(session, 1)
    update(model, optimizer)
    refused("optimizer.state.b.bias.exp_avg is new", lambda: state.step(session, 2), cairn.Changed)
    other = cairn.torch.State(model=nn.ModuleDict({"a": nn.Linear(2, 1), "b": nn.Linear(1, 1)}))
    refused("model.a.weight was saved as float32 of (1, 1); now it is float32 of (1, 2)", lambda: other.restore(cairn.Session.open(), 5), cairn.Changed)
    more = cairn.torch.State(model=nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1), "c": nn.Linear(1, 1)}))
    refused("the state has no tensor model.c.weight", lambda: more.restore(cairn.Session.open(), 5), cairn.NotFound)


def an_optimizers_step_waits_for_the_copy():
    folder()
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    state, session = cairn.torch.State(model=model, optimizer=optimizer), cairn.Session.open()
    state.restore(session, 5)
    update(model, optimizer)
    before = model.weight.detach().clone()
    state.step(session, 1)
    update(model, optimizer)
    assert torch.equal(cairn.torch.Tensors(cairn.Session.open().restore())["model.weight"], before)
    assert not torch.equal(model.weight, before)


def moments_in_another_dtype_stay_so():
    folder()
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state, session = cairn.torch.State(model=model, optimizer=optimizer), cairn.Session.open()
    state.restore(session, 2)
    update(model, optimizer)
    optimizer.state[model.weight]["master"] = torch.full((2, 2), 1.0 + 2 ** -20)
    state.step(session, 1)
    state.copied()
    fresh = torch.optim.SGD(model.parameters(), lr=0.1)
    cairn.torch.State(model=model, optimizer=fresh).restore(cairn.Session.open(), 2)
    assert fresh.state[model.weight]["master"].dtype == torch.float32
    assert torch.equal(fresh.state[model.weight]["master"], optimizer.state[model.weight]["master"])


def random_states_of_all_kinds_come_back():
    import random

    import numpy

    def draw():
        return random.random(), random.gauss(0, 1), numpy.random.rand(), torch.rand(()).item()
    random.gauss(0, 1)  # one is kept for the next call
    before = randoms.capture()
    first = draw()
    draw()
    randoms.restore(before)
    assert draw() == first


def batches_are_functions_of_the_step():
    one = cairn.torch.Batches(10, 4, 3, rank=0, size=1)
    whole = [one.at(step) for step in range(10)]
    first = [index for batch in whole for index in batch][:10]
    assert sorted(first) == list(range(10))  # an epoch has each sample once
    assert [sample.epoch for sample in whole[2]] == [0, 0, 1, 1]
    for size in (2, 3, 4):
        parts = [cairn.torch.Batches(10, 4, 3, rank=rank, size=size) for rank in range(size)]
        assert [[index for part in parts for index in part.at(step)] for step in range(10)] == whole
    late = cairn.torch.Batches(10, 4, 3, rank=0, size=1, start=6, stop=9)
    assert list(late) == whole[6:9] and len(late) == 3
    refused("each process needs a sample", lambda: cairn.torch.Batches(10, 2, 3, rank=0, size=3), ValueError)
    import pickle
    back = pickle.loads(pickle.dumps(whole[2][3]))
    assert back == whole[2][3] and back.epoch == 1


def generators_are_functions_of_the_sample():
    draw = lambda *key: torch.rand(2, generator=cairn.torch.generator(*key)).tolist()  # noqa: E731
    assert draw(1, 2, 3) == draw(1, 2, 3) and len({tuple(draw(*key)) for key in ((1, 2, 3), (2, 2, 3), (1, 3, 3), (1, 2, 4))}) == 4


def a_seeded_dataset_leaves_random_numbers_alone():
    dataset = cairn.torch.seeded([0] * 4, 1)
    before = torch.get_rng_state()
    assert dataset[2] == 0 and torch.equal(torch.get_rng_state(), before) and len(dataset) == 4


def a_loader_that_begins_anew_is_warned_of():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        loop._batches([1, 2], 3, 9)
    assert "begins anew" in str(seen[0].message)
    found = loop._batches([1, 2], 0, 9)
    assert [next(found) for _ in range(5)] == [1, 2, 1, 2, 1]


def settling_leaves_no_trace():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    model[0].weight.grad = torch.ones(2, 2)
    before, drawn = {name: value.clone() for name, value in model.state_dict().items()}, torch.get_rng_state()
    loop.settle(model, lambda: model(torch.rand(3, 2)).sum().backward())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn) and torch.equal(model[0].weight.grad, torch.ones(2, 2)) and model[0].bias.grad is None


def leaving_ends_the_process_or_the_loop():
    for leave in (True, False):
        folder()
        os.environ["CAIRN_FAKE_LEAVE"] = "3"
        try:
            model = nn.Linear(1, 1)
            session, seen = cairn.Session.open(), []
            try:
                for step in cairn.torch.steps(session, cairn.torch.State(model=model), 9, leave=leave):
                    seen.append(step)
                ended = "loop"
            except SystemExit as left:
                assert left.code == 0
                ended = "process"
            assert seen == [0, 1, 2] and session.exit_due and ended == ("process" if leave else "loop")
        finally:
            os.environ["CAIRN_FAKE_LEAVE"] = "0"
        assert next(iter(cairn.torch.steps(cairn.Session.open(), cairn.torch.State(model=model), 9))) == 3


def a_last_save_that_was_dropped_is_made_again():
    folder()
    session = cairn.Session.open()
    state = cairn.torch.State(model=nn.Linear(1, 1))
    state.restore(session, 1)
    connection = session._connection
    connection.step = lambda finished: cairn.NOTHING  # nothing was due when it was asked for

    def finish(finished):
        if connection.saved != finished:
            raise cairn.Again("dropped")
    connection.finish = finish
    state.step(session, 1)
    assert state.finish(session, 1) and connection.saved == 1


def another_number_of_processes_is_warned_of():
    folder()
    model = nn.BatchNorm1d(2)
    session = cairn.Session.open()
    state = cairn.torch.State(model=model)
    state.restore(session, 2)
    state.step(session, 1)
    state.copied()
    model.running_mean.fill_(5)
    found = cairn.Session.open().restore()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        late = cairn.torch.State(model=model)
        late.load(found, rank=1, size=2)
    import numpy
    draws = []
    for seed in (1, 2):  # whatever the program has seeded, which was for its first step
        numpy.random.seed(seed)
        late._random = {"step": 1, "rank": 1}
        late.restore_random()
        draws.append(numpy.random.rand())
    assert draws[0] == draws[1]
    assert "1 processes saved this state, and 2 go on" in str(seen[0].message) and model.running_mean[0] == 0


def plain_values_that_grow_too_much_say_so():
    folder()
    things = {"text": ""}
    state, session = cairn.torch.State(model=nn.Linear(1, 1), extra={"things": things}), cairn.Session.open()
    state.restore(session, 5)
    things["text"] = "x" * 200000
    refused("State(room=…) makes room", lambda: state.step(session, 1), cairn.Full)


def hostile_blobs_are_refused():
    for data in (b"", b"\xff", b"[", b'{"$":"tensor"}', b'{"$":"os.system","v":"x"}', b'{"$":"tuple","v":1}', b"[" * 100000, b'{"$":"array","dtype":"O","v":""}'):
        refused("", lambda data=data: cairn.session.errors and __import__("cairn.plain").plain.decode(data, gather.decode_hook), cairn.Corrupt)


def the_programs_of_the_help_run():
    """What help(cairn) and help(cairn.torch) show, with and without Cairn."""
    import textwrap
    for text in (cairn.__doc__, cairn.torch.__doc__):
        block = next(part for part in text.split("\n\n") if part.startswith("    ") and "cairn.torch.State(" in text and "optimizer.step()" in part
                     or part.startswith("    import cairn") or part.startswith("    with cairn.Session"))
        lines = text[text.index(block):].split("\n")
        program = "\n".join(line for at, line in enumerate(lines) if all(not each or each.startswith("    ") for each in lines[:at + 1]))
        program = textwrap.dedent(program).replace("total=1000", "total=7")
        assert "optimizer.step()" in program and "steps(session" in program
        digests = []
        for where in ("fake", None):
            folder()
            os.environ.pop("CAIRN_SOCKET", None)
            if where:
                os.environ["CAIRN_SOCKET"] = where
            torch.manual_seed(1)
            model = nn.Linear(2, 3)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            dataset = torch.utils.data.TensorDataset(torch.rand(200, 2), torch.arange(200) % 3)
            exec(program, {"cairn": cairn, "torch": torch, "model": model, "optimizer": optimizer, "dataset": dataset,  # the help's own words
                           "DataLoader": torch.utils.data.DataLoader, "criterion": nn.CrossEntropyLoss(),
                           "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3)})
            digests.append(model.weight.tolist())
        os.environ["CAIRN_SOCKET"] = "fake"
        assert digests[0] == digests[1]


if __name__ == "__main__":
    failed = 0
    for name, test in list(globals().items()):
        if callable(test) and getattr(test, "__module__", "") == "__main__" and name not in ("folder", "refused", "update", "saved_names"):
            try:
                test()
                print("ok", name, flush=True)
            except Exception:
                failed += 1
                print("FAILED", name)
                traceback.print_exc()
    sys.exit(failed > 0)
