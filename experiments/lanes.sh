# Several `deepauc study run` side by side on one GPU until a common end; to be sourced. Run from the repository's root:
#
#   LEFT=1600 COMMIT=... . experiments/lanes.sh    # seconds until all lanes stop; the commit that records name (git
#                                                  # rev-parse HEAD); data in $WORK/data, or set DATA; packages of
#                                                  # pretrained weights in $WORK/weights, or set WEIGHTS
#   mps                                            # lets several processes share the GPU; without it they take turns
#   lane d "study experiments/paper.py causes C2-D-1"
#   lane r "study experiments/paper.py released '*-R-1-untuned-*' --pack 24; study experiments/paper.py notebook"
#   wait_for 560 d r; tell; pack_records OUT       # in a later shell: . experiments/lanes.sh first
#
# The tree is copied once, so that a later checkout does not change the code under a running lane. A study that is
# stopped goes on with the next call: records are appended as runs end.
export WORK=${WORK:-/tmp/deepauc-lanes} DEVICE=${DEVICE:-cuda} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2}
mkdir -p "$WORK"/{data,runs,log,results}
export DATA=${DATA:-$WORK/data} WEIGHTS=${WEIGHTS:-$WORK/weights}
if [ ! -d "$WORK/tree" ]; then
  mkdir "$WORK/tree"
  tar -c --exclude=./.git --exclude=./.venv --exclude=./carry . | tar -x -C "$WORK/tree"
  [ -z "${COMMIT:-}" ] || { mkdir "$WORK/tree/.git" && echo "$COMMIT" >"$WORK/tree/.git/HEAD"; }  # for the records
  cp -a results/. "$WORK/results"
fi
[ -n "${LEFT:-}" ] && echo $(($(date +%s) + LEFT)) >"$WORK/end" && unset LEFT
[ -f "$WORK/env" ] && . "$WORK/env"

left() { echo $(($(cat "$WORK/end") - $(date +%s))); }

mps() {
  command -v nvidia-cuda-mps-control >/dev/null || { echo "no MPS here"; return; }
  mkdir -p "$WORK"/mps "$WORK"/mps-log
  echo "export CUDA_MPS_PIPE_DIRECTORY=$WORK/mps CUDA_MPS_LOG_DIRECTORY=$WORK/mps-log" >"$WORK/env"
  . "$WORK/env"
  setsid nvidia-cuda-mps-control -d </dev/null
  timeout 40 python3 -c "import torch; torch.ones(9, device='cuda').sum().item()" && return
  echo quit | nvidia-cuda-mps-control; rm "$WORK/env"; unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; echo "MPS failed"
}

study() { # FILE NAME [CELLS] [options]
  local file=$1 name=$2 cells=; shift 2
  case "${1:-}" in -* | "") ;; *) cells=$1 && shift ;; esac
  (cd "$WORK/tree" && PYTHONPATH=src:$WEIGHTS python3 -m deepauc.cli.main study run "$file" "$name" ${cells:+--cells "$cells"} \
    --device "$DEVICE" --data "$DATA" --runs "$WORK/runs" --results "$WORK/results" \
    --max-minutes "$(python3 -c "print(max(.02, $(left) / 60))")" "$@" 2>&1)
}

lane() { # NAME COMMANDS: outlives this shell; its log is $WORK/log/NAME.txt
  setsid bash -c "cd '$WORK/tree'; . experiments/lanes.sh; $2; echo 'LANE $1 ENDED'" >"$WORK/log/$1.txt" 2>&1 </dev/null &
}

tell() { # [LINES]: the end of each lane's log
  echo "$(left) s left"; tail -n "${1:-3}" "$WORK"/log/*.txt | cut -c1-230
}

wait_for() { # SECONDS LANES...
  local until=$(($(date +%s) + $1)) name; shift
  for name in "$@"; do
    while [ "$(date +%s)" -lt $until ] && ! grep -qs "LANE $name ENDED" "$WORK/log/$name.txt"; do sleep 2; done
  done
}

pack_records() { # FOLDER: records and logs as two files
  tar -czf "$1/results.tgz" -C "$WORK/results" . && tar -czf "$1/logs.tgz" -C "$WORK" log && ls -l "$1"
}
