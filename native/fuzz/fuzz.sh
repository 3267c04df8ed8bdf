#!/bin/sh
# Searches for bytes that break a rule of the front end, with stable Rust and a C++ compiler; cargo-fuzz is not needed.
#
#   fuzz.sh run TARGET MINUTES    search from the corpus and what earlier searches found; a finding ends it with status 77
#   fuzz.sh keep TARGET           replace the corpus by a few small inputs that reach as much of the code
#
# TARGET is scan, frames, framing, http_head or http_json. What searches find lies in build/fuzz/, findings in native/fuzz/artifacts/.
# NICE=0 takes the machine; the default leaves it to others.
set -eu
command=${1:?run or keep} target=${2:?a target}
here=$(cd "$(dirname "$0")" && pwd)
: "${CARGO_TARGET_DIR:=$here/../../build/cargo-fuzz}" "${FOUND:=$here/../../build/fuzz/$target}"
host=$(rustc -vV | sed -n 's/^host: //p')

# What cargo-fuzz passes, but for AddressSanitizer: that needs nightly Rust and guards `unsafe`, which is not used here.
flags="--cfg fuzzing -Cpasses=sancov-module -Ccodegen-units=1"
for option in level=4 inline-8bit-counters pc-table trace-compares; do
  flags="$flags -Cllvm-args=-sanitizer-coverage-$option"
done
# Naming the target keeps the flags off build scripts, which are run here and now.
RUSTFLAGS="$flags" cargo build --quiet --locked --release --manifest-path "$here/Cargo.toml" \
  --target "$host" --target-dir "$CARGO_TARGET_DIR" --bin "$target"
fuzzer="$CARGO_TARGET_DIR/$host/release/$target"

mkdir -p "$FOUND" "$here/artifacts"
case $command in
run)
  exec nice -n "${NICE:-19}" "$fuzzer" "$FOUND" "$here/corpus/$target" -max_total_time="$((${3:?minutes} * 60))" \
    -max_len=10000 -timeout=5 -rss_limit_mb=1024 -dict="$here/$target.dict" -artifact_prefix="$here/artifacts/$target-" \
    -print_final_stats=1 -use_value_profile=1
  ;;
keep)
  kept=$(mktemp -d)
  nice -n "${NICE:-19}" "$fuzzer" -merge=1 -use_counters=0 -max_len=10000 "$kept" "$here/corpus/$target" "$FOUND"
  rm -rf "${here:?}/corpus/$target" && mv "$kept" "$here/corpus/$target" && chmod 755 "$here/corpus/$target"
  ;;
*) echo "fuzz.sh: run or keep, not $command" >&2; exit 2 ;;
esac
