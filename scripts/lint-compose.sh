#!/usr/bin/env bash
# Lets Docker Compose itself check the compose files: alone, with the GPU override, with every profile.
# No engine is needed. Without a Compose v2 of its own a Debian machine fetches one into build/; elsewhere the check
# is skipped with a notice, and fails where CI=true.
set -euo pipefail
cd "$(dirname "$0")/.."

if docker compose version &>/dev/null; then
    COMPOSE=(docker compose)
else
    COMPOSE=(build/compose/usr/libexec/docker/cli-plugins/docker-compose)
    if [ ! -x "${COMPOSE[0]}" ]; then scripts/fetch-debs.sh trixie build/compose docker-compose || rm -rf build/compose; fi
    if [ ! -x "${COMPOSE[0]}" ]; then
        echo "lint-compose: SKIPPED: no Docker Compose v2 here to check the compose files with" >&2
        [ "${CI:-}" != true ] || exit 1
        exit 0
    fi
fi

check() { "${COMPOSE[@]}" "$@" config --quiet; }
check -f docker-compose.yml
check -f docker-compose.yml --profile '*'
check -f docker-compose.yml -f docker-compose.gpu.yml
printf 'lint-compose: the compose files are valid (%s)\n' "$("${COMPOSE[@]}" version --short)"
