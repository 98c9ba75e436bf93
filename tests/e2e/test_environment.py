"""No line of somebody's profile changes results: whatever variables of mathematics' libraries are set, digests are the same."""
import os
import subprocess

import pytest

from home import BIN, ROOT, TINY, Home

# Each that docs/environment.md names as left out, with a value that would matter.
LEFT_OUT = {
    "OMP_THREAD_LIMIT": "1", "OMP_DYNAMIC": "true", "OMP_MAX_ACTIVE_LEVELS": "0", "OMP_NESTED": "true",
    "OMP_SCHEDULE": "guided", "OMP_STACKSIZE": "16k", "KMP_DYNAMIC_MODE": "load_balance", "KMP_TEAMS_THREAD_LIMIT": "1",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16", "DNNL_DEFAULT_FPMATH_MODE": "BF16", "ONEDNN_CPU_ISA_HINTS": "PREFER_YMM",
    "DNNL_CPU_ISA_HINTS": "PREFER_YMM", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "0",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX512F", "NVIDIA_TF32_OVERRIDE": "0", "CUDA_FORCE_PTX_JIT": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUDNN_CONV_WSCAP_DBG": "1", "NCCL_ALGO": "Tree", "NCCL_PROTO": "LL",
}
# Of those that pass, what could be thought to matter.
PASSES = {"OMP_NUM_THREADS": "1", "OMP_PROC_BIND": "true", "OMP_WAIT_POLICY": "passive", "MALLOC_PERTURB_": "165",
          "MALLOC_ARENA_MAX": "1"}
PATIENT = {"OMP_WAIT_POLICY": "passive"}  # threads that spin take the processors from whom they wait for
SHRINKS = ["OMP_THREAD_LIMIT", "OMP_DYNAMIC", "OMP_MAX_ACTIVE_LEVELS"]  # teams of threads
JOB = (TINY.replace("{arch: mlp, hidden: 32, classes: 10}",
                    "{arch: gpt2, layers: 2, heads: 2, width: 64, context: 32, vocab: 256, dropout: 0.1}")
       .replace("duration: 12 steps", "duration: 4 steps").replace("warmup: 2 steps", "warmup: 1 steps")
       .replace("eval: {every: 6 steps}", "eval: {every: 4 steps}").replace("every: 4 steps, keep", "every: 2 steps, keep")
       .replace("momentum: 0.9, ", ""))


def train(folder, threads, **variables):
    """The digest of --local, in such an environment."""
    path = folder / "job.yaml"
    path.write_text(JOB, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
    done = subprocess.run([BIN / "cairn-trainer", "--local", path, "--digest", "--set", f"workers.threads={threads}"],
                          env={**env, **PATIENT, **variables}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and len(done.stdout.strip()) == 32, (variables, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module", name="quiet")
def digests_without_any(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quiet")
    return {threads: train(folder, threads) for threads in (1, 2, 4)}


def named_on_the_page(title):
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    rows = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0].splitlines()
    return {word for row in rows if row.startswith("| `") for word in row.split(" | ")[0].split("`")[1::2]}


def test_all_that_the_page_names_are_tried():
    assert {name for name in named_on_the_page("What is left out") if "*" not in name} == set(LEFT_OUT)
    passing = named_on_the_page("What passes")
    assert all(name in passing or f"{name.split('_')[0]}_*" in passing for name in PASSES)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_trained_alone_none_changes_the_digest(tmp_path, quiet, threads):
    tried = {**LEFT_OUT, **PASSES}
    for name, value in tried.items():
        if threads == 2 or name in SHRINKS:
            assert train(tmp_path, threads, **{name: value}) == quiet[threads], name


@pytest.mark.parametrize("name", SHRINKS)
def test_neither_a_cluster_nor_an_audit_of_it_is_changed(quiet, name):
    with Home(env={**PATIENT, name: LEFT_OUT[name]}) as home:
        for threads in (2, 4):
            job = home.submit(JOB, workers__threads=threads, workers__count=2)
            assert home.digest(job) == quiet[threads].strip()
            done = home.cairn("audit", f"{job}@2..4", check=False)
            assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)
        assert name in (home.home / "log" / "agent.log").read_text(encoding="utf-8")
