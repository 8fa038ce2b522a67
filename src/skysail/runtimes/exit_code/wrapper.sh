# Runs a program once and reports its exit code as a line of its output. POSIX sh; the variables nonce, lifetime, grace,
# hold, late_hold, api, ca, message_path and unusable are set before this text. The program with its arguments is "$@".

# The first folder that can be written keeps the state over restarts of the container.
state=
for folder in /tmp /var/tmp /dev/shm /run /; do
  if mkdir -p "$folder/.skysail-$nonce" 2>/dev/null; then
    state="$folder/.skysail-$nonce"
    break
  fi
done

report() {
  message=
  if [ -n "$message_path" ] && [ -s "$message_path" ]; then
    message=$(od -An -v -tx1 -N 2048 "$message_path" 2>/dev/null | tr -d ' \n')
  fi
  # Begin with a line end: the program may not have ended its last line.
  printf '\nskysail-exit %s %s %s %s\n' "$nonce" "$1" "$2" "$message"
}

# Deletes this pod through the API of the cloud, with the key that the cloud gave to the pod.
delete_pod() {
  [ -n "${RUNPOD_POD_ID:-}" ] && [ -n "${RUNPOD_API_KEY:-}" ] && [ -n "$api" ] || return 1
  authorization="Authorization: Bearer $RUNPOD_API_KEY"
  # The proxy of the service rejects the User-Agent of python3.
  agent='skysail/0.1 (+https://skysail.dev)'
  pod="$api/pods/$RUNPOD_POD_ID"
  ca_file=
  if [ -n "$ca" ] && [ -n "$state" ]; then
    ca_file="$state/ca"
    printf '%s' "$ca" > "$ca_file"
  fi
  if command -v curl >/dev/null 2>&1; then
    set -- -fsS -m 30 -o /dev/null -A "$agent" -H "$authorization"
    [ -n "$ca_file" ] && set -- "$@" --cacert "$ca_file"
    curl "$@" -X DELETE "$pod" 2>/dev/null && return 0
    curl "$@" -X POST -H 'Content-Type: application/json' -d '{"action":"terminate"}' "$pod/action" 2>/dev/null && return 0
  fi
  if command -v python3 >/dev/null 2>&1; then
    python3 - "$pod" "$authorization" "$agent" "$ca_file" <<'END' 2>/dev/null && return 0
import ssl, sys, urllib.request
url, authorization, agent, ca = sys.argv[1:]
headers = {"Authorization": authorization.split(": ", 1)[1], "User-Agent": agent, "Content-Type": "application/json"}
context = ssl.create_default_context(cafile=ca or None)
def request(method, url, body): return urllib.request.Request(url, body, headers, method=method)
def call(*fields): urllib.request.urlopen(request(*fields), timeout=30, context=context)
try: call("DELETE", url, None)
except OSError: call("POST", url + "/action", b'{"action":"terminate"}')
END
  fi
  if command -v wget >/dev/null 2>&1; then
    set -- -q -T 30 -O /dev/null -U "$agent" "--header=$authorization"
    [ -n "$ca_file" ] && set -- "$@" "--ca-certificate=$ca_file"
    wget "$@" --method=DELETE "$pod" 2>/dev/null && return 0
    wget "$@" '--header=Content-Type: application/json' '--post-data={"action":"terminate"}' "$pod/action" 2>/dev/null \
      && return 0
  fi
  return 1
}

# Waits in the background, because a trap runs only after a program in the foreground has ended.
nap() {
  sleep "$1" &
  sleeping=$!
  wait "$sleeping"
  kill "$sleeping" 2>/dev/null
}

# Keeps the container, so that it is not started again and its output stays readable, until the pod is deleted.
keep() {
  trap 'kill "$sleeping" 2>/dev/null; exit "$code"' TERM INT
  [ -n "$stopped" ] && exit "$code"
  if [ "$reason" = deadline ]; then
    # The operator reads the report and the last lines first: the cloud deletes the log with the pod.
    nap "$late_hold"
    delete_pod
  fi
  while :; do
    nap "$hold"
    delete_pod
  done
}

sleeping=
stopped=
if [ -n "$state" ] && [ -f "$state/code" ]; then
  # The container was started again after the program had ended.
  read -r code reason < "$state/code"
  report "$code" "$reason"
  keep
fi
if [ -n "$state" ] && [ -f "$state/started" ]; then
  # The container was started again while the program ran: it is not run a second time.
  code=137 reason=restarted
  echo "$code $reason" > "$state/code"
  report "$code" "$reason"
  keep
fi
child=
passed=
begin=$(date +%s)
# A signal may come before the program has been started: it is passed on then.
stop() {
  stopped=1
  [ -n "$child" ] && [ -z "$passed" ] || return
  passed=1
  kill -TERM "$child" 2>/dev/null
  (
    # In the moment of its start a program loses a signal: send it again.
    [ "$(($(date +%s) - begin))" -lt 2 ] && sleep 1 && kill -TERM "$child" 2>/dev/null
    sleep "$grace"
    kill -KILL "$child" 2>/dev/null
  ) &
}
trap stop TERM INT

[ -n "$state" ] && : > "$state/started"
printf 'skysail-start %s\n' "$nonce"
if [ -n "$unusable" ]; then
  # Report and stay: a container that exits is started again, and billed, until its deadline.
  problem="workingDir $unusable cannot be entered: create the folder in the image, or change workingDir."
  printf '%s\n' "$problem"
  message_path=
  [ -n "$state" ] && message_path="$state/message" && printf '%s' "$problem" > "$message_path"
  code=128 reason=exited
  [ -n "$state" ] && echo "$code $reason" > "$state/code"
  report "$code" "$reason"
  keep
fi

watcher=
"$@" &
child=$!
[ -n "$stopped" ] && stop
[ -n "$state" ] && echo "$child" > "$state/pid"
(
  trap 'kill "$sleeping" 2>/dev/null; exit 0' TERM
  nap "$lifetime"
  [ -n "$state" ] && : > "$state/deadline"
  kill -TERM "$child" 2>/dev/null
  nap "$grace"
  kill -KILL "$child" 2>/dev/null
) &
watcher=$!
while :; do
  wait "$child"
  code=$?
  # A trap interrupts the wait. A child that was not waited for can still be signalled.
  kill -0 "$child" 2>/dev/null || break
done
kill "$watcher" 2>/dev/null
reason=exited
[ -n "$state" ] && [ -f "$state/deadline" ] && reason=deadline
[ -n "$state" ] && echo "$code $reason" > "$state/code"
report "$code" "$reason"
[ -n "$stopped" ] && exit "$code"
keep
