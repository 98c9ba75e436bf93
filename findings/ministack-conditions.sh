#!/usr/bin/env bash
# ministack 1.4.0: a conditional DELETE removes the object though its condition doesn't hold, and a conditional GET sends what the
# caller has. A conditional PUT of the same condition is refused, as it should be.
#
# Expected (Amazon's DeleteObject: with If-Match "the operation returns a 412 (Precondition failed)" where the ETag is another one;
# GetObject: with If-None-Match of the object's ETag 304): who uses these conditions against lost updates loses one here.
# Seen, ministack 1.4.0 by boto3 1.44.5:
#   PUT, If-Match of another ETag: HTTP 412
#   GET, If-None-Match of its ETag: HTTP 200
#   DELETE, If-Match of another ETag: HTTP 204
#   then HEAD: HTTP 404
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/s3.sh"
ministack ministack==1.4.0 boto3==1.44.5
look <<'P'
import botocore.exceptions
def status(call, **more):
    try:
        return call(Bucket="bkt", Key="a", **more)["ResponseMetadata"]["HTTPStatusCode"]
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"]
etag = s3.put_object(Bucket="bkt", Key="a", Body=b"x")["ETag"]
other = '"00000000000000000000000000000000"'
assert etag != other
seen = [("PUT, If-Match of another ETag", status(s3.put_object, Body=b"y", IfMatch=other)),
        ("GET, If-None-Match of its ETag", status(s3.get_object, IfNoneMatch=etag)),
        ("DELETE, If-Match of another ETag", status(s3.delete_object, IfMatch=other)),
        ("then HEAD", status(s3.head_object))]
for what, code in seen:
    print(f"{what}: HTTP {code}")
assert [code for _, code in seen] == [412, 200, 204, 404], "this has changed"
P
