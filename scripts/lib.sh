# Sourced by the scripts beside it.

say() { echo "$*" >&2; }

# need_rust: rustup's cargo, or how to get it. The toolchain that rust-toolchain.toml names installs itself through it.
need_rust() {
  [[ ! -f $HOME/.cargo/env ]] || . "$HOME/.cargo/env"
  if ! command -v cargo >/dev/null 2>&1; then
    say "Rust is missing. Install rustup, either from your distribution (apt-get install rustup) or as https://rustup.rs says,"
    say "then run this again: the toolchain that Semel names in rust-toolchain.toml installs itself."
    exit 1
  fi
  # Rust links with the system's C compiler.
  if ! command -v cc >/dev/null 2>&1; then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null 2>&1; then
      { apt-get update -q && apt-get install -y -q gcc libc6-dev; } >&2
    else
      say "a C compiler is missing: apt-get install gcc libc6-dev"
      exit 1
    fi
  fi
}

# step NAME COMMAND...: runs it, tells how long it took, keeps its exit code.
step() {
  local name=$1 begin=$SECONDS code=0; shift
  echo "=== $name"
  "$@" || code=$?
  echo "=== $name: $((SECONDS - begin)) s$( ((code == 0)) || echo ", FAILED ($code)")"
  return "$code"
}
