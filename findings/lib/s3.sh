# Sourced by the scripts beside this folder, as packages.sh is: besides, a server on a port of its own.
. "$(dirname "$0")/lib/packages.sh"
# serve COMMAND...: its server on $port of loopback; sets S3, the address of an empty store, once $1 of it answers.
serve() {
    path=$1
    shift
    HOME=$work "$@" >"$work/log" 2>&1 &
    server=$!
    S3=http://127.0.0.1:$port
    for _ in $(seq 300); do
        "$python" -c "import urllib.request; urllib.request.urlopen('$S3$path')" 2>/dev/null && return
        sleep 0.1
    done
    echo "the server doesn't start: $(tail -n 3 "$work/log")" >&2
    exit 77
}
free_port() {
    port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
}
moto() {
    packages "$@"
    free_port
    serve /moto-api/ "$python" -m moto.server -H 127.0.0.1 -p "$port"
}
ministack() {
    packages "$@"
    free_port
    serve /_localstack/health env BIND_HOST=127.0.0.1 GATEWAY_PORT="$port" SERVICES=s3 "${python%/*}/ministack"
}
# Runs the program on standard input with s3, a client that has the bucket "bkt". It says what it saw and fails where that has
# changed. Exit code 0: as it was; 1: not any more; 77: it can't be run here.
look() {
    {
        echo "import boto3"
        echo "s3 = boto3.client('s3', endpoint_url='$S3', aws_access_key_id='a', aws_secret_access_key='b', region_name='us-east-1')"
        echo "s3.create_bucket(Bucket='bkt')"
        cat
    } > "$work/look.py"
    env -i PATH="$PATH" HOME="$work" "$python" "$work/look.py"
}
