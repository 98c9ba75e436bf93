#!/usr/bin/env bash
# moto 5.2.5: GetObject with PartNumber gives the whole object, HeadObject with the same PartNumber the part alone.
#
# Expected (Amazon's GetObject: "Part number of the object being read ... effectively performs a 'ranged' GET request for the part
# specified"): 206, and the 5 MiB of part 2. Who reads an object part by part gets it as often as it has parts.
# Seen, moto 5.2.5 by boto3 1.44.5:
#   HEAD of part 2: 5242880 bytes
#   GET of part 2: HTTP 200, 11534336 bytes
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/s3.sh"
moto "moto[server]==5.2.5" boto3==1.44.5
look <<'P'
part = 5 << 20
upload = s3.create_multipart_upload(Bucket="bkt", Key="a")["UploadId"]
etags = [s3.upload_part(Bucket="bkt", Key="a", UploadId=upload, PartNumber=n, Body=bytes([n]) * (part if n < 3 else 1 << 20))["ETag"]
         for n in (1, 2, 3)]
s3.complete_multipart_upload(Bucket="bkt", Key="a", UploadId=upload,
                             MultipartUpload={"Parts": [{"PartNumber": n + 1, "ETag": etag} for n, etag in enumerate(etags)]})
head = s3.head_object(Bucket="bkt", Key="a", PartNumber=2)
got = s3.get_object(Bucket="bkt", Key="a", PartNumber=2)
size, status = len(got["Body"].read()), got["ResponseMetadata"]["HTTPStatusCode"]
print(f"HEAD of part 2: {head['ContentLength']} bytes")
print(f"GET of part 2: HTTP {status}, {size} bytes")
assert (head["ContentLength"], status, size) == (part, 200, 2 * part + (1 << 20)), "this has changed"
P
