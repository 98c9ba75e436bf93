#!/usr/bin/env bash
# moto 5.2.5: an object whose key has a newline can't be written: HTTP 404, though the bucket is there.
#
# Expected: a key is any sequence of Unicode characters of up to 1024 bytes of UTF-8; a newline may need XML's escapes in lists,
# and is stored. A tab, a '?', a '#' and an umlaut are taken.
# Seen, moto 5.2.5 by boto3 1.44.5:
#   'a\tb': HTTP 200
#   'a?b': HTTP 200
#   'ä': HTTP 200
#   'a\nb': HTTP 404
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/s3.sh"
moto "moto[server]==5.2.5" boto3==1.44.5
look <<'P'
import botocore.exceptions
def put(key):
    try:
        return s3.put_object(Bucket="bkt", Key=key, Body=b"x")["ResponseMetadata"]["HTTPStatusCode"]
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
seen = {key: put(key) for key in ("a\tb", "a?b", "ä", "a\nb")}
for key, status in seen.items():
    print(f"{key!r}: HTTP {status}")
assert list(seen.values()) == [200, 200, 200, 404], "this has changed"
P
