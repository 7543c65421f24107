#!/usr/bin/env bash
# Fails for a relative link in a Markdown file whose target does not exist, and for an anchor no heading makes.
set -euo pipefail
. "$(dirname "$0")/env.sh"
cd "$root"

# GitHub's rule: lower case, punctuation dropped, spaces to dashes.
anchors() { sed -n 's/^##* *//p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'; }

bad=0 n=0
while IFS= read -r f; do
  [ -f "$f" ] || continue
  while IFS= read -r link; do
    case $link in *://* | mailto:* | '') continue ;; esac
    n=$((n + 1))
    path=${link%%#*} anchor=
    [[ $link != *#* ]] || anchor=${link#*#}
    target=$f
    [ -z "$path" ] || target=$(dirname "$f")/$path
    if [ ! -e "$target" ]; then
      echo "$f: no $link"
      bad=1
    elif [ -n "$anchor" ] && [ -f "$target" ] && [[ $target == *.md ]] && ! anchors "$target" | grep -qxF -- "$anchor"; then
      echo "$f: no heading for $link"
      bad=1
    fi
  done < <(awk '/^ *```/ {code = !code} !code' "$f" | grep -oE '\]\([^)[:space:]]+\)' | sed 's/^](//; s/)$//')
done < <(git ls-files --cached --others --exclude-standard '*.md')
[ $bad = 0 ] && echo "links: $n, none broken"
exit $bad
