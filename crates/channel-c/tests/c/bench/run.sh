#!/bin/sh
# Builds the release library and runs the benchmarks against it.
set -eu
cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-../../../../../target}"
cargo build --release -p marline-channel-c
mkdir -p "$target/c-bench"
for source in *.c; do
    program="$target/c-bench/${source%.c}"
    cc -O2 -Wall -Wextra -std=c11 "$source" "$target/release/libmarline_channel_c.a" \
        -o "$program" -lpthread -ldl -lm
    "$program" "$@"
done
