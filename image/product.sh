#!/bin/sh
# Lay the product out as it lies in the image's root: product.sh FOLDER PYTHON makes FOLDER/product.
# It is taken from the Debian package in dist/ where there is one, else made of the wheels in dist/ and the lock file, at
# the same places. PYTHON has the 'appliance' command with what packs models.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
folder=$1 python=$2 tree=$1/product release=3.13
home=$tree.new/usr/lib/edge-appliance packages=$tree.new/usr/lib/edge-appliance/lib/python$release/site-packages
deb=$(ls "$here"/dist/edge-appliance_*_amd64.deb 2>/dev/null | tail -1)
inputs=$(cat "$here/requirements.lock" "$here"/dist/*.whl ${deb:+"$deb"} "$here"/systemd/* "$0" 2>/dev/null | cksum)
[ "$(cat "$folder/product.made" 2>/dev/null)" != "$inputs" ] || exit 0
echo "make: laying out the product${deb:+ of $(basename "$deb")}"
rm -rf "$tree.new" "$folder/product.made"
mkdir -p "$tree.new"
if [ -n "$deb" ]; then
  dpkg-deb -x "$deb" "$tree.new"
  rm -rf "$tree.new"/usr/share/doc "$tree.new"/usr/share/lintian
  [ -d "$packages" ] || { echo "make: $deb is not of Debian 13's Python $release" >&2; exit 1; }
else
  set -- "$here"/dist/edge_appliance-*.whl "$here"/dist/edge_appliance_native-*x86_64.whl
  [ -e "$1" ] && [ -e "$2" ] || { echo "make: there are no wheels in dist/; 'make wheels' makes them" >&2; exit 1; }
  mkdir -p "$packages" "$home/bin" "$tree.new/usr/bin" "$tree.new/etc/appliance"
  pip="$python -m pip --disable-pip-version-check --quiet --no-input install --target $packages --no-compile --no-deps"
  $pip --python-version $release --implementation cp --platform manylinux_2_39_x86_64 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --only-binary=:all: \
    --require-hashes -r "$here/requirements.lock"
  $pip --upgrade --no-index --python-version $release --platform manylinux_2_17_x86_64 --only-binary=:all: "$@"
  rm -rf "$packages/bin"
  ln -s /usr/bin/python3 "$home/bin/python"
  printf 'home = /usr/bin\ninclude-system-site-packages = false\nversion = %s\n' $release >"$home/pyvenv.cfg"
  printf '#!/usr/lib/edge-appliance/bin/python\nimport sys\n\nfrom appliance.cli.main import main\n\nsys.exit(main())\n' \
    >"$home/bin/appliance"
  chmod 755 "$home/bin/appliance"
  ln -s ../lib/edge-appliance/bin/appliance "$tree.new/usr/bin/appliance"
  [ -e "$here/systemd/appliance.service" ] || { echo "make: systemd/ has no units for the image" >&2; exit 1; }
  for unit in "$here"/systemd/*.service "$here"/systemd/*.slice "$here"/systemd/*.socket; do
    [ ! -e "$unit" ] || install -Dm644 "$unit" "$tree.new/usr/lib/systemd/system/$(basename "$unit")"; done
  for kind in sysusers tmpfiles; do
    file=$(ls "$here/systemd/$kind.conf" "$here/systemd/edge-appliance.$kind" "$here/systemd/$kind.d/"*.conf 2>/dev/null | head -1)
    [ -z "$file" ] || install -Dm644 "$file" "$tree.new/usr/lib/$kind.d/edge-appliance.conf"; done
  mkdir -p "$tree.new/usr/share/edge-appliance"
  cp -R "$here/models/digits" "$tree.new/usr/share/edge-appliance/"
  mkdir "$tree.new/usr/share/edge-appliance/models"
  mv "$tree.new/usr/share/edge-appliance/digits" "$tree.new/usr/share/edge-appliance/models/"
fi
# What is never imported where a box serves.
rm -rf "$packages"/*/tests "$packages"/numpy/*/tests "$packages"/onnxruntime/tools "$packages"/onnxruntime/quantization \
  "$packages"/onnxruntime/transformers
rm -rf "$tree"
mv "$tree.new" "$tree"
echo "$inputs" >"$folder/product.made"
