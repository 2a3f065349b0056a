#!/usr/bin/env bash
# Packs streamjoin and what it needs for executors that have a Python of the same version, and nothing else:
#     deploy/pack-environment.sh environment.zip
#     spark.archives=environment.zip#environment   spark.executorEnv.PYTHONPATH=environment
# WHEEL is what is installed, by default this checkout with what S3 needs.
set -euo pipefail
checkout=$(realpath "$(dirname "$0")/..")
target=$(realpath "${1:-environment.zip}")
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
"${PYTHON:-python3}" -m pip install --quiet --target "$directory" "${WHEEL:-${checkout}[s3]}"
rm -f "$target"
(cd "$directory" && "${PYTHON:-python3}" -m zipfile -c "$target" ./*)
echo "$target"
