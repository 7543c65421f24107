#!/usr/bin/env bash
# Fails for a Rust file over 400 lines that does not say why (`// Long because ...` in its first 30 lines), and for a
# function over 100 lines. Functions are found by indentation, which rustfmt makes reliable.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"

mapfile -t files < <(git ls-files --cached --others --exclude-standard '*.rs')
bad=0
for f in "${files[@]}"; do
  [ -f "$f" ] || continue
  n=$(wc -l <"$f")
  if [ "$n" -gt 400 ] && ! head -n 30 "$f" | grep -q '^//[/!]* *Long because '; then
    echo "$f: $n lines, and no '// Long because ...' at its top"
    bad=1
  fi
done
long=$(awk '
  FNR == 1 { start = 0 }
  !start && match($0, /^ *(pub(\([a-z]+\))? )?(default )?(const )?(async )?(unsafe )?fn [a-z_0-9]+/) {
    indent = match($0, /[^ ]/) - 1; name = $0; sub(/^ */, "", name); sub(/[(<].*/, "", name); start = FNR
  }
  start && match($0, /[^ ]/) == indent + 1 && substr($0, indent + 1, 1) == "}" {
    if (FNR - start + 1 > 100) print FILENAME ":" start ": " name " has " FNR - start + 1 " lines"
    start = 0
  }
  start && FNR == start && /[};]$/ { start = 0 }
  start && match($0, /[^ ]/) == indent + 1 && /^ *\).*;$/ { start = 0 }
' "${files[@]}")
[ -z "$long" ] || { echo "$long"; bad=1; }
[ $bad = 0 ] && echo "lengths: ${#files[@]} files, none too long without its reason, no function over 100 lines"
exit $bad
