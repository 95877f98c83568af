#!/bin/sh
# Makes the client of the page, web/src/gen/, from the .proto files of the house. Needs protoc.
set -eu
cd "$(dirname "$0")/.."
# Before anything is removed.
command -v protoc >/dev/null || { echo "protoc is missing: install protobuf-compiler" >&2; exit 1; }
rm -rf web/src/gen
mkdir -p web/src/gen
exec protoc -I ../../proto --plugin=protoc-gen-es=node_modules/.bin/protoc-gen-es \
    --es_out=web/src/gen --es_opt=target=ts,import_extension=js ../../proto/fonn/v1/*.proto
