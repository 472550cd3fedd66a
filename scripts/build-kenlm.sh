#!/usr/bin/env bash
# Builds KenLM's programs lmplz, build_binary and query from the sources of the pinned release and installs them
# into PREFIX/bin. The Python wheel of KenLM only queries models; these programs estimate and compile them.
#
#   usage: build-kenlm.sh PREFIX          PREFIX is a virtual environment, such as .venv
#
# Boost is taken from where it can be had, in this order; KENLM_BOOST=system|apt|wheel allows one place only:
#   system   headers and libraries that are already installed
#   apt      Debian's packages, where this runs as root and apt-get exists
#   wheel    the cmeel-boost wheel: needs no rights; its libraries are copied into PREFIX/lib/kenlm
# Does nothing where the programs are there and work. Nothing of the build is kept.
set -euo pipefail

RELEASE=0.3.0
SHA256=c4628bb9fb63c8a6f9240035b8b037385cfc404cb72e933cf48878291edac1e8
BOOST_WHEEL='cmeel-boost==1.88.0' # from 1.89 on, Boost has no compiled "system" for KenLM's CMake file to find
BOOST_PACKAGES=(libboost-program-options-dev libboost-system-dev libboost-thread-dev)
PROGRAMS=(lmplz build_binary query)

say() { printf 'build-kenlm: %s\n' "$*" >&2; }
fail() { say "$@"; exit 1; }

[ $# -eq 1 ] || fail "usage: build-kenlm.sh PREFIX"
mkdir -p "$1/bin" && PREFIX=$(cd "$1" && pwd)
BOOST=${KENLM_BOOST:-auto}
case $BOOST in auto | system | apt | wheel) ;; *) fail "KENLM_BOOST must be system, apt or wheel, not '$BOOST'" ;; esac

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

# Whether the programs in the folder $1 run: a bigram of two sentences is estimated, compiled and asked.
works() {
    local bin=$1 program
    for program in "${PROGRAMS[@]}"; do [ -x "$bin/$program" ] || return 1; done
    printf 'a b c\na b d\n' >"$WORK/text"
    "$bin/lmplz" -o 2 -S 64M -T "$WORK" --discount_fallback --text "$WORK/text" --arpa "$WORK/arpa" &>"$WORK/log" &&
        "$bin/build_binary" -T "$WORK" probing "$WORK/arpa" "$WORK/binary" &>>"$WORK/log" &&
        "$bin/query" "$WORK/binary" <"$WORK/text" 2>>"$WORK/log" | grep -q '^a=.*Total: -'
}

if works "$PREFIX/bin"; then
    say "lmplz, build_binary and query are in $PREFIX/bin already"
    exit 0
fi

PYTHON=$PREFIX/bin/python
[ -x "$PYTHON" ] || PYTHON=python3
PIP=("$PYTHON" -m pip --disable-pip-version-check --quiet)

can_apt() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }
apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -yqq --no-install-recommends "$@" >/dev/null
}

find_tools() {
    if ! { command -v g++ && command -v make; } >/dev/null; then
        can_apt || fail "a C++ compiler (g++) and make are needed; install them and run this again"
        apt_install g++ make || fail "g++ and make could not be installed"
    fi
    if ! command -v cmake >/dev/null; then # KenLM's wheel takes CMake from PyPI too: no rights needed
        "${PIP[@]}" install --target "$WORK/cmake" cmake || fail "CMake could not be installed"
        export PYTHONPATH="$WORK/cmake${PYTHONPATH:+:$PYTHONPATH}" PATH="$WORK/cmake/bin:$PATH"
    fi
}

fetch_sources() {
    printf 'kenlm==%s --hash=sha256:%s\n' "$RELEASE" "$SHA256" >"$WORK/pin"
    "${PIP[@]}" download --no-deps --no-binary kenlm --require-hashes -r "$WORK/pin" -d "$WORK" ||
        fail "the sources of KenLM $RELEASE could not be fetched"
    tar -xzf "$WORK/kenlm-$RELEASE.tar.gz" -C "$WORK"
    SOURCE=$WORK/kenlm-$RELEASE
    sed -i.orig '/^ *unit_test_framework$/d' "$SOURCE/CMakeLists.txt" # only KenLM's own tests use it
}

# KenLM is given plain text here, so the compression libraries would only be three more things to be missing later.
configure() {
    rm -rf "$WORK/build"
    cmake -Wno-dev -S "$SOURCE" -B "$WORK/build" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_DISABLE_FIND_PACKAGE_{Eigen3,ZLIB,BZip2,LibLZMA}=ON "$@" &>"$WORK/configure.log"
}
# Boost linked in, where it can be: then the programs stand without it.
configure_system() { configure -DBoost_USE_STATIC_LIBS=ON || configure; }

configure_apt() {
    can_apt || return 1
    say "installing ${BOOST_PACKAGES[*]}"
    apt_install "${BOOST_PACKAGES[@]}" && configure_system
}

configure_wheel() {
    say "fetching $BOOST_WHEEL"
    "${PIP[@]}" install --no-deps --only-binary :all: --target "$WORK/boost" "$BOOST_WHEEL" || return 1
    BOOST_ROOT_DIR=$WORK/boost/cmeel.prefix
    # shellcheck disable=SC2016 # $ORIGIN is for the dynamic loader
    configure -DBoost_NO_SYSTEM_PATHS=ON "-DBOOST_ROOT=$BOOST_ROOT_DIR" "-DCMAKE_PREFIX_PATH=$BOOST_ROOT_DIR" \
        -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN/../lib/kenlm'
}

install_boost_libraries() {
    local library
    mkdir -p "$PREFIX/lib/kenlm"
    for library in "$BOOST_ROOT_DIR"/lib/libboost_{program_options,thread,system,chrono,atomic,date_time}.so.*; do
        if [ -e "$library" ]; then cp "$library" "$PREFIX/lib/kenlm/"; fi
    done
}

find_boost() {
    local place
    for place in system apt wheel; do
        if [ "$BOOST" = auto ] || [ "$BOOST" = "$place" ]; then
            if "configure_$place"; then
                say "building KenLM $RELEASE with Boost from: $place"
                return
            fi
        fi
    done
    if [ -e "$WORK/configure.log" ]; then tail -n 20 "$WORK/configure.log" >&2; fi
    fail "no usable Boost found (program_options, system, thread)"
}

find_tools
fetch_sources
BOOST_ROOT_DIR=
find_boost
if ! cmake --build "$WORK/build" --target "${PROGRAMS[@]}" -j "$(getconf _NPROCESSORS_ONLN)" &>"$WORK/build.log"; then
    tail -n 30 "$WORK/build.log" >&2
    fail "the build failed"
fi
if [ -n "$BOOST_ROOT_DIR" ]; then install_boost_libraries; fi
for program in "${PROGRAMS[@]}"; do install -m 755 "$WORK/build/bin/$program" "$PREFIX/bin/"; done
rm -rf "$WORK/build" "$WORK/boost" # so that the test below would notice a program that still needs them
if ! works "$PREFIX/bin"; then
    if [ -e "$WORK/log" ]; then tail -n 20 "$WORK/log" >&2; fi
    fail "the programs were built, but do not work"
fi
say "installed lmplz, build_binary and query into $PREFIX/bin"
