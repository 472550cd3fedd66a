#!/usr/bin/env bash
# Checks what a user gets who installs the wheel without extras: a light command line that runs, and that says which
# extra a command needs. Away from the sources, so that only the wheel's own files count.
#
#   usage: check-wheel.sh VENV        VENV: the virtual environment that has everything installed
set -euo pipefail

VENV=$(cd "${1:?usage: check-wheel.sh VENV}" && pwd)
ROOT=$(cd "$(dirname "$0")/.." && pwd)
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

fail() { printf 'check-wheel: %s\n' "$*" >&2; exit 1; }

"$VENV/bin/pip" wheel --quiet --no-deps -w "$WORK" "$ROOT"
"$VENV/bin/python" -m venv "$WORK/venv"
BIN=$WORK/venv/bin
"$BIN/pip" --disable-pip-version-check install --quiet -c "$ROOT/constraints.txt" "$WORK"/nbest_rescoring-*.whl
cd "$WORK"

cat >light.py <<'PYTHON'
import sys

import clients.cli
import clients.sdk

heavy = {"torch", "numpy", "kenlm", "jiwer", "fastapi", "pydantic", "models", "service"}.intersection(sys.modules)
sys.exit(f"importing clients also loads {sorted(heavy)}" if heavy else 0)
PYTHON
"$BIN/python" -I light.py || fail "the client does not import from the bare wheel"
"$VENV/bin/python" -I light.py || fail "the client loads more than it needs where everything is installed"

for command in '' evaluate rescore serve train tune perplexity; do
    # shellcheck disable=SC2086 # the empty command is no argument
    "$BIN/nbest" $command --help >help.txt 2>&1 || { cat help.txt >&2; fail "nbest $command --help failed"; }
done

if "$BIN/nbest" serve some-bundle >answer.txt 2>&1; then status=0; else status=$?; fi
[ "$status" -eq 2 ] || { cat answer.txt >&2; fail "nbest serve without its extra exits with $status, not 2"; }
grep -qF "nbest-rescoring[service]" answer.txt || { cat answer.txt >&2; fail "nbest serve does not name its extra"; }
if grep -q Traceback answer.txt; then cat answer.txt >&2; fail "nbest serve shows a stack trace"; fi
printf 'check-wheel: the wheel without extras is light, runs, and names what is missing: %s\n' "$(tail -n 1 answer.txt)"
