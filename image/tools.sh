#!/bin/sh
# Make the tools that build and boot the image: a Debian 13 tree, whatever the machine itself runs.
# tools.sh FOLDER ARCHITECTURE: the tree is FOLDER/tools, with what boots images of that architecture. It is of the machine's
# own. A list of packages that changed makes it anew.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1 tree=$1/tools
packages=$(cat "$here/tools.packages" "$here/tools-$2.packages")
stamp=$folder/tools-$({ echo "$packages"; cat "$0"; } | cksum | cut -d' ' -f1)
[ ! -e "$stamp" ] || exit 0
command -v mmdebstrap >/dev/null || {
  echo "make: the image is built with mmdebstrap; on Debian and Ubuntu install it: apt-get install mmdebstrap" >&2; exit 1; }
[ "$(id -u)" = 0 ] || { echo "make: the image is built as root, who alone may make a root of its own" >&2; exit 1; }
echo "make: making the tools that build the image (a minute or two, once)"
mkdir -p "$folder"
rm -rf "$tree" "$folder"/tools-*
mmdebstrap --quiet --variant=apt --mode=root --dpkgopt=force-unsafe-io \
  --aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' \
  --include="$(echo "$packages" | paste -sd,)" trixie "$tree" \
  ${MIRROR:+"deb $MIRROR/debian trixie main"} ${MIRROR:+"deb $MIRROR/debian trixie-updates main"} \
  ${MIRROR:+"deb $MIRROR/debian-security trixie-security main"} >"$folder/tools.log" 2>&1 || {
  echo "make: the tools could not be made; why: $folder/tools.log" >&2; exit 1; }
# A signature tells when it was made, so the clock stands still for the program that makes them.
mv "$tree/usr/bin/sbsign" "$tree/usr/bin/sbsign.real"
cat >"$tree/usr/bin/sbsign" <<'PROGRAM'
#!/bin/sh
export LD_PRELOAD="$(echo /usr/lib/*-linux-gnu/faketime/libfaketime.so.1)" FAKETIME="2025-11-27 00:00:00" TZ=UTC
exec /usr/bin/sbsign.real "$@"
PROGRAM
chmod 755 "$tree/usr/bin/sbsign"
touch "$stamp"
