#!/usr/bin/env bash
# Run the e2e tests: on kind if kind and Docker are there, else on the local control plane.
set -euo pipefail
cd "$(dirname "$0")/.."
if command -v kind >/dev/null && command -v docker >/dev/null; then
  exec make kind-test-e2e
fi
echo "kind or Docker is not on PATH: the tests run on the local control plane."
exec make test-e2e
