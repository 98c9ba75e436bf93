#!/usr/bin/env bash
# moto 5.2.5: two lists don't keep the bound that they are asked for, and say that they are complete.
#
# Expected: ListMultipartUploads with MaxUploads=2 gives two of five and IsTruncated; so does ListObjects (version 1) with
# Delimiter='/' and MaxKeys=2 with prefixes, which count as keys ("All of the keys that roll up into a common prefix count as a
# single return"). ListObjectsV2 of moto does. A client's code for the next page is never run in tests against it.
# Seen, moto 5.2.5 by boto3 1.44.5:
#   MaxUploads=2: 5 uploads, IsTruncated False, MaxUploads 1000
#   ListObjects, MaxKeys=2: 5 prefixes, IsTruncated False, MaxKeys 2
#   ListObjectsV2, MaxKeys=2: 2 prefixes, IsTruncated True
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/s3.sh"
moto "moto[server]==5.2.5" boto3==1.44.5
look <<'P'
for n in range(5):
    s3.create_multipart_upload(Bucket="bkt", Key=f"upload {n}")
    s3.put_object(Bucket="bkt", Key=f"folder {n}/a", Body=b"x")
uploads = s3.list_multipart_uploads(Bucket="bkt", MaxUploads=2)
first = s3.list_objects(Bucket="bkt", Delimiter="/", MaxKeys=2)
second = s3.list_objects_v2(Bucket="bkt", Delimiter="/", MaxKeys=2)
seen = [(len(uploads["Uploads"]), uploads["IsTruncated"], uploads["MaxUploads"]),
        (len(first["CommonPrefixes"]), first["IsTruncated"], first["MaxKeys"]),
        (len(second["CommonPrefixes"]), second["IsTruncated"])]
print("MaxUploads=2: {} uploads, IsTruncated {}, MaxUploads {}".format(*seen[0]))
print("ListObjects, MaxKeys=2: {} prefixes, IsTruncated {}, MaxKeys {}".format(*seen[1]))
print("ListObjectsV2, MaxKeys=2: {} prefixes, IsTruncated {}".format(*seen[2]))
assert seen == [(5, False, 1000), (5, False, 2), (2, True)], "this has changed"
P
