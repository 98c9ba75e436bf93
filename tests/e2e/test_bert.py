"""BERT in stages, with owned moments and tied weights: equal bits whatever dies; and its files are those of Hugging Face's
transformers, both ways, with their config.json."""
import json

import pytest

from home import Home
from test_llama import SPREAD
from test_precision import BERT, write_text
from test_tools import STILL, local, peer_libraries, read_safetensors

assert peer_libraries  # the fixture `peer`

HUGGING_FACE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "intermediate_size": 256, "vocab_size": 260,
                "max_position_embeddings": 32, "type_vocab_size": 2}


def run(**sets):
    with Home(faults=sets.pop("faults", None)) as home:
        write_text(home)
        return home.run(BERT, seconds=120, **sets)


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        write_text(home)
        (home.dir / "bert.yaml").write_text(BERT.replace(", dropout: 0.1", ""), encoding="utf-8")
        yield home


@pytest.fixture(scope="module", name="job")
def trained(home):
    job = home.cairn("submit", "bert.yaml", "-o", "name").stdout.strip()
    home.digest(job, 120)
    return job


@pytest.fixture(scope="module", name="alone")
def on_one_worker():
    return run(workers__count=1)


@pytest.mark.parametrize("spread", SPREAD, ids=["owners", "stages", "stages-owners"])
def test_spreading_and_a_kill_change_no_bit(spread, alone):
    count = 3 if spread == {"parallel__pipeline": 3} else 4
    assert run(workers__count=count, faults="trainer.backward,rank=1,step=4:kill", **spread) == alone


def test_what_is_masked_is_part_of_the_job(alone):
    assert run(workers__count=1, model__mask_share=0.3) != alone


def test_an_export_has_hugging_face_s_names_and_config(home, job):
    (home.dir / "out").mkdir()
    home.cairn("ckpt", "export", job, "out/model.safetensors")
    metadata, tensors = read_safetensors(home.dir / "out/model.safetensors")
    assert metadata["format"] == "pt" and len(tensors) == 2 * 16 + 10
    shapes = {name: shape for name, (_, shape, _) in tensors.items()}
    layer = "bert.encoder.layer.1."
    for part in ("query", "key", "value"):
        assert shapes[f"{layer}attention.self.{part}.weight"] == [64, 64]
        assert shapes[f"{layer}attention.self.{part}.bias"] == [64]
    assert shapes["bert.embeddings.word_embeddings.weight"] == [260, 64]
    assert shapes["bert.embeddings.token_type_embeddings.weight"] == [2, 64]
    assert shapes[layer + "output.LayerNorm.weight"] == [64] and shapes["cls.predictions.bias"] == [260]
    config = json.loads((home.dir / "out/config.json").read_text())
    assert {key: config[key] for key in HUGGING_FACE} == HUGGING_FACE
    (home.dir / "out/config.json").write_text(json.dumps({**config, "num_attention_heads": 4}))
    shown = home.cairn("plan", "bert.yaml", "--set", "model.weights=out/model.safetensors", check=False)
    assert shown.returncode == 2 and "set model.heads to 4" in shown.stderr


def test_transformers_computes_the_same_loss(home, job, peer):
    (home.dir / "trained").mkdir()
    home.cairn("ckpt", "export", job, "trained/model.safetensors")
    ours, digest = local(home, "bert.yaml")
    assert digest == home.cairn("ckpt", "digest", job).stdout.strip()
    theirs = peer("bert-loss", home.dir / "trained", home.dir / "eval.txt", 3)
    print(f"bert: Cairn {ours:.9g}, transformers {theirs['loss']:.9g} over {theirs['targets']} tokens")
    assert abs(ours - theirs["loss"]) < 1e-5


def test_a_model_of_transformers_computes_the_same_loss_here(home, peer):
    folder = home.dir / "made"
    peer("bert-make", folder, json.dumps(HUGGING_FACE))
    sets = ["--set", f"model.weights={folder}/model.safetensors", *STILL, "--set", "train.schedule.warmup=0 steps"]
    ours, _ = local(home, "bert.yaml", *sets)
    theirs = peer("bert-loss", folder, home.dir / "eval.txt", 3)
    print(f"bert made there: Cairn {ours:.9g}, transformers {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5
    home.cairn("ckpt", "import", folder / "model.safetensors", "--job", "bert.yaml", "--to", "in/step-000000000000.g1",
               "--set", "name=imported")
    home.cairn("ckpt", "export", home.dir / "in", "back.safetensors", "--force")
    assert read_safetensors(home.dir / "back.safetensors")[1] == read_safetensors(folder / "model.safetensors")[1]
