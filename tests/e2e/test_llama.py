"""Llama in stages, with owned moments and tied weights: equal bits whatever dies; and its files are those of Hugging
Face's transformers, both ways, with their config.json."""
import json

import pytest

from home import Home
from test_precision import LLAMA, write_text
from test_tools import STILL, local, peer_libraries, read_safetensors

assert peer_libraries  # the fixture `peer`

SPREAD = [{"parallel__zero": 1}, {"parallel__pipeline": 3}, {"parallel__pipeline": 2, "parallel__zero": 1}]
HUGGING_FACE = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
                "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 32, "rms_norm_eps": 1e-5}


def run(**sets):
    with Home(faults=sets.pop("faults", None)) as home:
        write_text(home)
        return home.run(LLAMA, seconds=120, **sets)


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        write_text(home)
        (home.dir / "llama.yaml").write_text(LLAMA, encoding="utf-8")
        yield home


@pytest.fixture(scope="module", name="job")
def trained(home):
    job = home.cairn("submit", "llama.yaml", "-o", "name").stdout.strip()
    home.digest(job, 120)
    return job


@pytest.mark.parametrize("tied", ["true", "false"])
@pytest.mark.parametrize("spread", SPREAD, ids=["owners", "stages", "stages-owners"])
def test_spreading_and_a_kill_change_no_bit(spread, tied):
    alone = run(workers__count=1, model__tied=tied)
    count = 3 if spread == {"parallel__pipeline": 3} else 4
    assert run(workers__count=count, model__tied=tied, faults="trainer.backward,rank=1,step=4:kill", **spread) == alone


def test_an_export_has_hugging_face_s_names_and_config(home, job):
    (home.dir / "out").mkdir()
    home.cairn("ckpt", "export", job, "out/model.safetensors")
    metadata, tensors = read_safetensors(home.dir / "out/model.safetensors")
    assert metadata["format"] == "pt" and len(tensors) == 2 * 9 + 3
    shapes = {name: shape for name, (_, shape, _) in tensors.items()}
    layer = "model.layers.1."
    assert shapes["model.embed_tokens.weight"] == shapes["lm_head.weight"] == [256, 64]
    assert shapes[layer + "self_attn.q_proj.weight"] == shapes[layer + "self_attn.o_proj.weight"] == [64, 64]
    assert shapes[layer + "self_attn.k_proj.weight"] == shapes[layer + "self_attn.v_proj.weight"] == [32, 64]
    assert shapes[layer + "mlp.gate_proj.weight"] == shapes[layer + "mlp.up_proj.weight"] == [256, 64]
    assert shapes[layer + "mlp.down_proj.weight"] == [64, 256] and shapes["model.norm.weight"] == [64]
    config = json.loads((home.dir / "out/config.json").read_text())
    assert {key: config[key] for key in HUGGING_FACE} == HUGGING_FACE
    assert config["rope_parameters"]["rope_theta"] == 10000 and config["tie_word_embeddings"] is False
    assert config["dtype"] == "float32"
    (home.dir / "out/config.json").write_text(json.dumps({**config, "num_key_value_heads": 1}))
    home.cairn("ckpt", "export", job, "out/again.safetensors")  # leaves it
    shown = home.cairn("plan", "llama.yaml", "--set", "model.weights=out/again.safetensors", check=False)
    assert shown.returncode == 2 and "set model.kv_heads to 1" in shown.stderr
    home.cairn("ckpt", "export", job, "out/again.safetensors", "--force")
    home.cairn("plan", "llama.yaml", "--set", "model.weights=out/again.safetensors")
    tied = ["--set", "model.tied=true", "--set", "model.weights=out/again.safetensors"]
    assert "set model.tied to false" in home.cairn("plan", "llama.yaml", *tied, check=False).stderr


def test_transformers_computes_the_same_loss(home, job, peer):
    (home.dir / "trained").mkdir()
    home.cairn("ckpt", "export", job, "trained/model.safetensors")
    ours, digest = local(home, "llama.yaml")
    assert digest == home.cairn("ckpt", "digest", job).stdout.strip()
    theirs = peer("llama-loss", home.dir / "trained", home.dir / "eval.txt")
    print(f"llama: Cairn {ours:.9g}, transformers {theirs['loss']:.9g} over {theirs['targets']} tokens")
    assert abs(ours - theirs["loss"]) < 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_of_transformers_computes_the_same_loss_here(home, peer, tied):
    folder = home.dir / f"made-{tied}"
    peer("llama-make", folder, json.dumps({**HUGGING_FACE, "tie_word_embeddings": tied, "rope_theta": 5000.0}))
    sets = ["--set", f"model.weights={folder}/model.safetensors", "--set", "model.rope_theta=5000",
            "--set", f"model.tied={str(tied).lower()}"]
    ours, _ = local(home, "llama.yaml", *sets, *STILL, "--set", "train.schedule.warmup=0 steps")
    theirs = peer("llama-loss", folder, home.dir / "eval.txt")
    print(f"llama made there: Cairn {ours:.9g}, transformers {theirs['loss']:.9g}")
    assert abs(ours - theirs["loss"]) < 1e-5
    home.cairn("ckpt", "import", folder / "model.safetensors", "--job", "llama.yaml", "--to", f"in-{tied}/step-000000000000.g1",
               *sets[2:], "--set", "name=imported")
    home.cairn("ckpt", "export", home.dir / f"in-{tied}", f"back-{tied}.safetensors", "--force")
    assert read_safetensors(home.dir / f"back-{tied}.safetensors")[1] == read_safetensors(folder / "model.safetensors")[1]
