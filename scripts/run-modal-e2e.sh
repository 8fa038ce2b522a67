#!/usr/bin/env bash
# Run the unit tests and the simulation inside a sandbox at Modal. Needs MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, also from .env.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -f .env ]; then
  set -a
  . ./.env
  set +a
fi
for name in MODAL_TOKEN_ID MODAL_TOKEN_SECRET; do
  if [ -z "${!name:-}" ]; then
    echo "$name is not set: put it into .env (see .env.example) or into the environment." >&2
    exit 2
  fi
done
make -s .venv/.ready
exec .venv/bin/python -m scripts.modal_e2e
