#!/usr/bin/env bash
# docs/settings.md from the operator's own --help: settings-doc.sh OPERATOR NOTE
set -euo pipefail
"$1" --help | awk -v note="$2" '
  BEGIN {
    print "# Settings of the operator\n"
    print "<!-- " note " -->\n"
    print "A setting is read from the settings file (`--config FILE` or `ETO_CONFIG`; TOML, one section per heading below),"
    print "then from the environment, then from flags; the later one wins. All are read once, at the start. A key that does not"
    print "exist is an error that names the nearest one. `--print-settings` prints what was resolved. Durations are written `500ms`,"
    print "`15s`, `2m` or `1h30m`. [Operations](operations.md) says when to change which."
  }
  # clap: "  name:" headings, "      --flag <VALUE>" lines, then the text on lines of deeper indentation.
  function flush() {
    if (flag == "" || section == "") return
    gsub(/[ \t]+/, " ", text); sub(/^ /, "", text); sub(/ $/, "", text)
    def = ""; env = ""
    if (match(text, /\[default: [^]]*\]/)) { def = substr(text, RSTART + 10, RLENGTH - 11); text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH) }
    if (match(text, /\[ETO_[A-Z_]*\]/)) { env = substr(text, RSTART + 1, RLENGTH - 2); text = substr(text, 1, RSTART - 1) substr(text, RSTART + RLENGTH) }
    sub(/ +$/, "", text); gsub(/\|/, "\\|", text)
    key = substr(flag, length(section) + 2)
    printf "| `%s` | %s | %s |\n", key, text, def == "" ? "" : "`" def "`"
    flag = ""; text = ""
  }
  /^[a-z][a-z-]*:$/ { flush(); section = $0; sub(/:$/, "", section); printf "\n## `[%s]`\n\n| key | meaning | default |\n| --- | --- | --- |\n", section; next }
  /^[A-Z]/ { flush(); section = ""; next }
  section != "" && /^ +--/ { flush(); flag = $1; sub(/^--/, "", flag); text = $0; sub(/^ *--[a-z-]+ <[A-Z]+>/, "", text); next }
  flag != "" { text = text " " $0 }
  END { flush() }
'
