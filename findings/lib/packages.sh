# Sourced by the scripts beside this folder, which set `work`, a folder of their own that goes in the end: the packages that they
# pin, from PyPI, in an environment there (FINDINGS_PYTHON: one that is there already). Nothing of Cairn is run.
server=
end() {
    [ -z "$server" ] || kill "$server" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
packages() {
    python=${FINDINGS_PYTHON:-}
    if [ -z "$python" ]; then
        python3 -m venv "$work/venv"
        "$work/venv/bin/pip" install -q --disable-pip-version-check "$@"
        python=$work/venv/bin/python
    fi
    for pinned in "$@"; do
        name=${pinned%%==*}
        "$python" -c "import importlib.metadata as m, sys; sys.exit(m.version('${name%%[*}') != '${pinned#*==}')" ||
            { echo "$pinned is not what $python has" >&2; exit 77; }
    done
}
# Runs the program on standard input, with the environment's own folder as the current one. Exit code 0: as it was; 1: not any
# more; 77: it can't be run here.
look_at() {
    cat >"$work/look.py"
    (cd "$work" && env -i PATH="$PATH" HOME="$work" OMP_NUM_THREADS=1 "$@" look.py)
}
