#!/usr/bin/env bash
# Builds the image, trains a bundle in it, serves it with Compose and asks it something: all for real. At the end it
# writes the hashes of the files that the image is made of to scripts/docker-check.sum, from which CI knows whether
# they have changed since.
#
# Uses the Docker engine that is running. Where there is none, as root on Debian, it brings one of its own for the
# time of the check: Debian 13's engine, unpacked and not installed, its data in memory (about 5 GB), and in place of
# the base image from a registry one of Debian's own packages under the same name. Everything is undone at the end.
# Exit status 69 where no engine can be had.
#
#   WHEELS                    a folder of wheels that pip prefers, such as one with a CPU build of torch
#   TORCH_SPEC, TORCH_INDEX   as for the Dockerfile
#   TRAIN=demo                have the train profile train the demo's own models, which takes minutes more
#   CHECK_PORT                a free port of this machine (18080)
#   LOG                       where the build's output goes (build/docker-check.log)
set -euo pipefail
cd "$(dirname "$0")/.."

INPUTS=(Dockerfile .dockerignore docker-compose.yml docker-compose.gpu.yml constraints.txt scripts/build-kenlm.sh)
WORK=
LOG=${LOG:-build/docker-check.log}
PORT=${CHECK_PORT:-18080}
URL=http://127.0.0.1:$PORT
BASE=$(sed -n 's/^FROM \(python:[^ ]*\)$/\1/p' Dockerfile)

export RESCORER_IMAGE=nbest-rescoring:check RESCORER_PORT=$PORT
COMPOSE=(docker compose --project-name nbest-docker-check) # never the user's own project, whose volume would go

say() { printf '[%4d s] %s\n' "$SECONDS" "$*"; }
fail() { say "FAILED: $*" >&2; exit 1; }

clean_up() {
    local status=$? pid
    set +e
    if docker info &>/dev/null; then
        "${COMPOSE[@]}" --profile '*' down --volumes --timeout 5 &>/dev/null
        docker image rm "$RESCORER_IMAGE" &>/dev/null
    fi
    if [ -n "$WORK" ]; then
        if pid=$(cat "$WORK/docker.pid" 2>/dev/null); then
            kill "$pid"
            for _ in {1..60}; do kill -0 "$pid" 2>/dev/null || break; sleep 0.5; done
        fi
        ip link delete docker0 2>/dev/null
        [ ! -s "$WORK/firewall" ] || iptables-restore <"$WORK/firewall"
        [ ! -s "$WORK/forward" ] || cat "$WORK/forward" >/proc/sys/net/ipv4/ip_forward
        cd /
        umount "$WORK" || umount --lazy "$WORK"
        rmdir "$WORK"
    fi
    exit "$status"
}
trap clean_up EXIT

# --- the engine -------------------------------------------------------------------------------------------------------

unavailable() { say "no Docker engine can be had here: $*"; exit 69; }

bring_engine() {
    [ "$(id -u)" -eq 0 ] || unavailable "none is running, and only root could start one"
    local folder
    folder=$(mktemp -d)
    mount -t tmpfs -o size=12g nbest-docker "$folder" || { rmdir "$folder"; unavailable "no tmpfs"; }
    WORK=$folder
    mkdir -p "$WORK"/{bin,tmp,config/cli-plugins}
    say "fetching an engine"
    scripts/fetch-debs.sh trixie "$WORK/debs" docker.io docker-cli docker-buildx docker-compose containerd tini ||
        unavailable "Debian's packages cannot be fetched"
    export DEBIAN_FRONTEND=noninteractive
    apt-get install -yqq --no-install-recommends runc iptables iproute2 mmdebstrap >/dev/null || # runc: for this libc
        unavailable "runc, iptables and mmdebstrap cannot be installed"
    ln -s "$WORK"/debs/usr/sbin/docker* "$WORK"/debs/usr/bin/containerd* "$WORK/bin/"
    ln -s "$WORK/debs/usr/bin/tini-static" "$WORK/bin/docker-init" # what `init: true` runs
    command -v docker >/dev/null || ln -s "$WORK/debs/usr/bin/docker" "$WORK/bin/"
    find "$WORK/debs" -path '*/cli-plugins/docker-*' -exec ln -s {} "$WORK/config/cli-plugins/" \;
    export PATH=$WORK/bin:$PATH DOCKER_CONFIG=$WORK/config DOCKER_HOST=unix://$WORK/docker.sock TMPDIR=$WORK/tmp
}

start_engine() {
    local device mtu
    iptables-save >"$WORK/firewall"
    # A table that is not there yet is saved as nothing, and would be left as the engine fills it: save it as empty.
    grep -q '^\*filter' "$WORK/firewall" || printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n' >>"$WORK/firewall"
    grep -q '^\*nat' "$WORK/firewall" || printf '*nat\n:PREROUTING ACCEPT\n:INPUT ACCEPT\n:OUTPUT ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n' >>"$WORK/firewall"
    cat /proc/sys/net/ipv4/ip_forward >"$WORK/forward"
    device=$(ip route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p' | head -n 1)
    mtu=$(cat "/sys/class/net/$device/mtu") # a larger one than the machine's would lose packets without a word
    setsid dockerd --data-root "$WORK/data" --exec-root "$WORK/exec" --pidfile "$WORK/docker.pid" \
        --host "$DOCKER_HOST" --mtu "$mtu" &>"$WORK/dockerd.log" </dev/null &
    for _ in {1..60}; do
        if docker info &>/dev/null; then return; fi
        sleep 0.5
    done
    tail -n 20 "$WORK/dockerd.log" >&2
    unavailable "dockerd does not start"
}

stand_in_for_base() {
    say "making a stand-in for $BASE from Debian's packages"
    # shellcheck disable=SC2016 # $1 is the hook's
    mmdebstrap --quiet --mode=root --variant=minbase --dpkgopt=force-unsafe-io \
        --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --include=ca-certificates,python3,python3-venv,python3-dev \
        --customize-hook='ln -s /usr/bin/python3 "$1/usr/local/bin/python"' \
        bookworm - /etc/apt/sources.list.d/debian.sources |
        docker import --change 'CMD ["python3"]' - "$BASE" >/dev/null
}

# --- the image --------------------------------------------------------------------------------------------------------

# This machine's own way to the package index, for pip inside the build. Paths of this machine mean nothing there.
pip_settings() {
    local key value
    printf '[global]\n'
    [ ! -e "$1" ] || printf 'cert = /run/secrets/ca_bundle\n'
    for key in index-url extra-index-url trusted-host; do
        value=$(python3 -m pip config get "global.$key" 2>/dev/null) || continue
        value=$(tr ' ' '\n' <<<"$value" | grep -v '^file:' | tr '\n' ' ') || continue
        printf '%s = %s\n' "$key" "$value"
    done
}

local_wheels() {
    local folder
    for folder in ${WHEELS:-$(python3 -m pip config list | sed -n "s/.*find-links='\(.*\)'$/\1/p")}; do
        if compgen -G "$folder/torch-*.whl" >/dev/null; then
            printf '%s\n' "$folder"
            return
        fi
    done
}

build_image() {
    local certificates=/etc/ssl/certs/ca-certificates.crt secrets wheels
    secrets=$(mktemp)
    pip_settings "$certificates" >"$secrets"
    wheels=$(local_wheels)
    local options=(--secret "id=pip_conf,src=$secrets")
    [ ! -e "$certificates" ] || options+=(--secret "id=ca_bundle,src=$certificates")
    [ -z "$wheels" ] || options+=(--build-context "wheels=$wheels")
    mkdir -p "$(dirname "$LOG")"
    docker build --progress=plain "${options[@]}" --build-arg "TORCH_SPEC=${TORCH_SPEC:-}" \
        --build-arg "TORCH_INDEX=${TORCH_INDEX:-}" --tag "$RESCORER_IMAGE" . &>"$LOG" || {
        tail -n 40 "$LOG" >&2
        fail "the image does not build"
    }
    rm -f "$secrets"
    say "built: $(docker image ls --format '{{.Size}}' "$RESCORER_IMAGE")"
}

# --- what must be true of it ------------------------------------------------------------------------------------------

sealed_shell() { "${COMPOSE[@]}" run --rm --no-deps -T --entrypoint sh rescorer -euc "$1"; }

check_seal() {
    # shellcheck disable=SC2016 # the container's shell expands these
    sealed_shell '
        [ "$(id -u)" = 10001 ]
        if touch /app/x /bundle/x 2>/dev/null; then echo "the file system can be written to" >&2; exit 1; fi
        ! ls /run/secrets/* 2>/dev/null
        grep -q "^CapEff:[[:space:]]*0*$" /proc/self/status
        grep -q "^NoNewPrivs:[[:space:]]*1$" /proc/self/status
        python3 -c "import kenlm, torch"
        printf "a b c\na b d\n" >/tmp/text
        lmplz -o 2 -S 64M -T /tmp --discount_fallback </tmp/text 2>/dev/null >/tmp/arpa
        build_binary -T /tmp /tmp/arpa /tmp/binary >/dev/null 2>&1
        query /tmp/binary </tmp/text 2>/dev/null | grep -q Total
    ' || fail "the container is not sealed, or KenLM does not run in it"
    say "sealed: user 10001, read-only, no capabilities; torch, kenlm and lmplz run"
}

check_unhealthy() {
    local name=nbest-docker-check-idle health
    docker run --detach --rm --name "$name" --health-interval 1s --health-start-period 1s --health-retries 1 \
        --entrypoint sleep "$RESCORER_IMAGE" 60 >/dev/null
    for _ in {1..30}; do
        health=$(docker inspect --format '{{.State.Health.Status}}' "$name")
        [ "$health" = starting ] || break
        sleep 0.5
    done
    docker rm --force "$name" >/dev/null
    [ "$health" = unhealthy ] || fail "a container that serves nothing is '$health'"
    say "a container that serves nothing is unhealthy"
}

# Small models under the names of the demo's, which the train profile then takes for an earlier run's.
train_small_models() {
    # shellcheck disable=SC2016 # the container's shell expands $text
    "${COMPOSE[@]}" --profile train run --rm -T --entrypoint sh train -euc '
        text=examples/ljspeech/ljspeech_text.txt.xz
        python3 -c "import lzma, sys; sys.stdout.write(lzma.open(sys.argv[1]).read().decode())" $text >/tmp/text
        head -n 3000 /tmp/text >/tmp/train
        tail -n 100 /tmp/text >/tmp/valid
        nbest train kn /bundle --text /tmp/train --memory 200M
        nbest train rnn /bundle --text /tmp/train --valid /tmp/valid --hidden 20 --epochs 1
    ' &>>"$LOG" || {
        tail -n 20 "$LOG" >&2
        fail "no models could be trained in the container"
    }
    say "trained small models into the volume"
}

run_train_profile() {
    "${COMPOSE[@]}" --profile train run --rm -T train &>>"$LOG" || {
        tail -n 20 "$LOG" >&2
        fail "the train profile failed"
    }
    say "the train profile has made the bundle"
}

# POSTs standard input as JSON to the address and prints the answer.
post() {
    python3 -c '
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], sys.stdin.buffer.read(), {"content-type": "application/json"})
sys.stdout.write(urllib.request.urlopen(request, timeout=30).read().decode())' "$1"
}

check_service() {
    "${COMPOSE[@]}" up --detach --no-build --wait --wait-timeout 120 rescorer &>>"$LOG" || {
        "${COMPOSE[@]}" logs --no-color rescorer | tail -n 20 >&2
        fail "the service does not become healthy"
    }
    say "healthy; memory: $(docker stats --no-stream --format '{{.MemUsage}}' "$("${COMPOSE[@]}" ps --quiet rescorer)")"
    post "$URL/v1/rescore" >build/docker-check.json <<'JSON' || fail "a rescoring was not answered"
{"utterances": [{"id": "one", "hypotheses": [
    {"text": "the the of", "acoustic_score": -10.0}, {"text": "of the house", "acoustic_score": -10.0}]}]}
JSON
    python3 -c 'import json; print("answer:", json.load(open("build/docker-check.json"))["results"][0]["best_text"])'
}

# A session is on the volume: it is there after the container was killed and another one began.
check_session() {
    printf '{"id": "check"}' | post "$URL/v1/sessions" >/dev/null || fail "a session was not made"
    post "$URL/v1/sessions/check/rescore" >/dev/null <<'JSON' || fail "a session's utterance was not answered"
{"utterance": {"id": "one", "hypotheses": [{"text": "of the house", "acoustic_score": -10.0}]}}
JSON
    "${COMPOSE[@]}" kill --signal KILL rescorer &>>"$LOG"
    "${COMPOSE[@]}" up --detach --no-build --force-recreate --wait --wait-timeout 120 rescorer &>>"$LOG"
    python3 -c 'import json, sys, urllib.request as r
described = json.load(r.urlopen(sys.argv[1], timeout=30))
assert described["version"] == 1 and described["words_learnt"] == 4, described' "$URL/v1/sessions/check" ||
        fail "the session did not survive"
    say "a session survived kill -9 and a new container"
}

check_stop() {
    local start=$SECONDS container code
    container=$("${COMPOSE[@]}" ps --quiet rescorer)
    "${COMPOSE[@]}" stop rescorer &>>"$LOG"
    code=$(docker inspect --format '{{.State.ExitCode}}' "$container")
    case $code in 0 | 143) ;; *) fail "the service ended with exit status $code, as if it had been killed" ;; esac
    say "stopped in $((SECONDS - start)) s, exit status $code"
}

if ! docker info &>/dev/null; then
    bring_engine
    start_engine
    stand_in_for_base
fi
say "engine $(docker version --format '{{.Server.Version}}'), $(docker compose version)"
build_image
check_seal
check_unhealthy
[ "${TRAIN:-}" = demo ] || train_small_models </dev/null
run_train_profile </dev/null
check_service
check_session
check_stop
sha256sum "${INPUTS[@]}" >scripts/docker-check.sum
say "all good: scripts/docker-check.sum is written"
