#!/usr/bin/env bash
# Opens an issue about a failed test run, unless one with the same title is open: `scripts/issue.sh WHAT`. Needs gh.
set -euo pipefail
cd "$(dirname "$0")/.."
text=$(python3 scripts/issue_text.py out/newest.log "$1")
title=${text%%$'\n'*}
if [[ $(gh issue list --state open --search "in:title \"$title\"" --json title --jq 'length') != 0 ]]; then exit 0; fi
gh issue create --title "$title" --body "${text#*$'\n\n'}

Run: ${RUN_URL:-by hand}"
