"""Checkpoints are read back by the workers, each another's file; what one finds damaged the coordinator reads itself."""
from pathlib import Path

from home import Home, until

LONG = {"train__duration": "5000 steps", "checkpoint__every": "500 steps", "checkpoint__keep__last": 1}
SHORTER = {**LONG, "train__duration": "2500 steps"}


def events(home, job, kind):
    return [e["message"] for e in home.show(job)["events"] if e["kind"] == kind]


def test_the_workers_read_it_back_and_older_ones_go():
    with Home() as home:
        job = home.submit(**LONG)
        log = until(lambda: (lambda text: text if text.count("was read back") >= 2 else None)(
            home.cairn("logs", job).stdout), 30, "both workers read one back")
        assert "file 0 " in log and "file 1 " in log, log
        home.digest(job)
        until(lambda: len(home.show(job)["checkpoints"]) == 1, 30, "older ones went")
        assert home.show(job)["checkpoints"][0]["verified"]
        assert not events(home, job, "read-back"), events(home, job, "read-back")


def test_a_flipped_byte_is_found_by_the_other_worker_and_read_again_by_the_coordinator():
    with Home() as home:
        quiet = home.run(**SHORTER)
    with Home(faults="readback.file,rank=1:wait;trainer.forward,rank=0,step=2200:wait") as home:  # so that it isn't over
        job = home.submit(**SHORTER)
        home.wait_hit("readback.file")
        asked = home.cairn("why", job).stdout
        assert "is read back by the workers: " in asked, asked
        step = int(asked.split(" is read back by the workers")[0].split()[-1])
        folder = next(Path(c["path"]) for c in home.show(job)["checkpoints"] if int(c["step"]) == step)
        shard = sorted(folder.glob("shard-*.cairn"))[0]  # rank 0 wrote it, rank 1 reads it
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(bytes(data))
        home.go("readback.file")
        until(lambda: events(home, job, "damaged"), 60, "it is set aside")
        home.go("trainer.forward")
        disputed = events(home, job, "read-back")
        assert len(disputed) == 1 and disputed[0].startswith("rank 1 reads damage"), disputed
        assert home.digest(job) == quiet
        assert home.show(job)["restarts"] == 0
        assert folder.with_name("bad-" + folder.name).is_dir() and not folder.exists()
