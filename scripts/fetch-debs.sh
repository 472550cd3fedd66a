#!/usr/bin/env bash
# Downloads packages of Debian's release SUITE and unpacks them into a folder, installing nothing.
#
#   usage: fetch-debs.sh SUITE FOLDER PACKAGE...
# Exit status 69 where that cannot be done: no Debian, or no sources file in the deb822 format to learn the mirror from.
set -euo pipefail

SUITE=${1:?suite}
FOLDER=${2:?folder}
shift 2
SOURCES=/etc/apt/sources.list.d/debian.sources

# shellcheck source=/dev/null
. /etc/os-release 2>/dev/null || ID=unknown
if [ "$ID" != debian ] || [ ! -r "$SOURCES" ] || ! command -v apt-get >/dev/null; then
    echo "fetch-debs: this needs Debian with $SOURCES" >&2
    exit 69
fi

mkdir -p "$FOLDER"/apt/{lists/partial,cache/archives/partial}
FOLDER=$(cd "$FOLDER" && pwd)
sed "s/$VERSION_CODENAME/$SUITE/g" "$SOURCES" >"$FOLDER/apt/$SUITE.sources"
OPTIONS=(-qq -o "Dir::Etc::SourceList=$FOLDER/apt/$SUITE.sources" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$FOLDER/apt/lists" -o "Dir::Cache=$FOLDER/apt/cache" -o APT::Sandbox::User=)
[ "$(id -u)" -ne 0 ] || OPTIONS+=(-o APT::Sandbox::User=root)

apt-get "${OPTIONS[@]}" update
cd "$FOLDER"
apt-get "${OPTIONS[@]}" download "$@"
for package in ./*.deb; do dpkg-deb -x "$package" .; done
rm -rf ./*.deb apt/lists apt/cache
