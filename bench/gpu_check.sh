#!/usr/bin/env bash
# One command for a machine with a GPU and nothing to download: builds, tests, checks and measures what needs one.
#
#   [PYTHON=python3] [OUT=folder] bench/gpu_check.sh
#
# Every step has a time limit and all run, whatever failed before; in about 8 minutes it is over. Writes gpu_check.md (a
# line per step), gpu_check.log (what they printed) and bench.tar.gz to OUT (default: build/gpu_check). Exit code: 0, 1
# if a step failed, 2 if the machine lacks what the steps need. SEER_CHECK_DEVICE=cpu takes the steps as far as they go
# without a GPU.
set -u
cd "$(dirname "$0")/.." || exit 2

python=${PYTHON:-python3}
device=${SEER_CHECK_DEVICE:-cuda}
out=${OUT:-build/gpu_check}
deadline=465 # seconds, for all steps together

stop() {
  echo "gpu_check: $1" >&2
  exit 2
}

# ---- what the machine has ----

[[ $device == cuda || $device == cpu ]] || stop "SEER_CHECK_DEVICE must be cuda or cpu, got '$device'"
command -v "$python" >/dev/null || stop "PYTHON must be a Python 3.10 or newer, got '$python'"
missing=$("$python" -c '
import importlib.util, shutil
names = ["torch", "numpy", "pytest", "setuptools", "pybind11", "cmake", "ninja"]
names += ["safetensors", "tokenizers", "transformers", "PIL", "tqdm"]
print(*(n for n in names if importlib.util.find_spec(n) is None and shutil.which(n) is None))
') || stop "$python does not run"
[[ -z $missing ]] || stop "$python lacks: $missing"
if [[ $device == cuda ]]; then
  export PATH="$PATH:/usr/local/cuda/bin"
  command -v "${CUDACXX:-nvcc}" >/dev/null || stop "nvcc was not found: put it on the PATH, or set CUDACXX to it"
  capability=$("$python" -c 'import torch; print("%d.%d" % torch.cuda.get_device_capability())' 2>/dev/null) ||
    stop "torch finds no CUDA device"
  export SEER_CUDA=ON SEER_REQUIRE_CUDA=1 TORCH_CUDA_ARCH_LIST="${TORCH_CUDA_ARCH_LIST:-$capability}"
fi
export PYTHONPATH="$PWD/python:$PWD" PYTHONUNBUFFERED=1
unset SEER_DEBUG # its checks wait for the device, which a graph capture can't

mkdir -p "$out" || stop "OUT must be a folder that can be written, got '$out'"
logs=$(mktemp -d) || stop "there is no room for temporary files"
trap 'rm -rf "$logs"' EXIT

# ---- steps ----

rows=()
failed=0

# record NAME RESULT SECONDS NOTE
record() {
  rows+=("| $1 | $2 | $3 | $4 |")
  echo "$2  $1  $3 s  $4"
  [[ $2 != FAIL ]] || failed=$((failed + 1))
}

# step NAME LIMIT COMMAND...: the command may take LIMIT seconds.
step() {
  local name=$1 limit=$2 begin=$SECONDS left=$((deadline - SECONDS)) status note
  shift 2
  if ((left < limit)); then limit=$left; fi
  if ((limit < 5)); then
    record "$name" FAIL 0 "no time was left"
    return
  fi
  echo "---- $name: $*" >"$logs/$name.log"
  timeout -k 5 "$limit" "$@" >>"$logs/$name.log" 2>&1 </dev/null
  status=$?
  note=$(tail -n 1 "$logs/$name.log" | tr -d '|=' | cut -c -100)
  cat "$logs/$name.log" >>"$logs/all"
  if ((status == 0)); then
    record "$name" PASS $((SECONDS - begin)) "$note"
  elif [[ $name == denoise || $name == costs ]] && { ((status == 124)) || grep -q "must fit the memory" "$logs/$name.log"; }; then
    record "$name" SKIP $((SECONDS - begin)) "more than this GPU's memory, or than $limit s"
  elif ((status == 124 || status == 137)); then
    record "$name" FAIL $((SECONDS - begin)) "stopped at its limit of $limit s"
  elif [[ $name == sanitizer_* ]] && grep -q "Device not supported" "$logs/$name.log"; then
    record "$name" SKIP $((SECONDS - begin)) "compute-sanitizer doesn't support this device"
  else
    record "$name" FAIL $((SECONDS - begin)) "exit code $status: $note"
    tail -n 30 "$logs/$name.log"
  fi
}

tests=("$python" -m pytest -q -p no:cacheprovider)
small="cuda and test_matches_reference and not threads"
only=() # our kernels; the option's name depends on the sanitizer's age
for option in --kernel-regex --kernel-name; do
  if compute-sanitizer --help 2>/dev/null | grep -q -e "$option "; then only=("$option" kns=seer); fi
done
bench=("$python" bench/run_all.py --device cuda --repeats 10 --skip torch.compile --out "$logs/bench")

if [[ $device == cuda ]]; then
  step build 200 "$python" setup.py build_ext --inplace
  step ops 150 "${tests[@]}" tests/ops -k cuda --ignore tests/ops/test_cuda_graph.py
else
  step build 60 "$python" -m seer_ext.info
  step ops 60 "${tests[@]}" tests/ops/test_mlp_sparsity.py
  bench=("$python" bench/run_all.py --help)
fi
step graph 90 "${tests[@]}" tests/ops/test_cuda_graph.py
step runtime 90 "${tests[@]}" -m needs_cuda tests/runtime/test_cuda.py tests/runtime/test_capture_packed.py
if [[ -e bench/run_all.py ]]; then
  step bench 120 "${bench[@]}"
else
  record bench SKIP 0 "there is no bench/run_all.py"
fi
for tool in memcheck racecheck; do
  if [[ $device == cpu ]]; then
    record "sanitizer_$tool" SKIP 0 "for CUDA alone"
  elif command -v compute-sanitizer >/dev/null; then
    # Without torch's cache every tensor is an allocation of its own, whose end the tool knows.
    step "sanitizer_$tool" 75 env PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
      compute-sanitizer --tool "$tool" --error-exitcode 99 "${only[@]}" "${tests[@]}" tests/ops -k "$small"
  else
    record "sanitizer_$tool" SKIP 0 "compute-sanitizer was not found"
  fi
done
costs=("$python" bench/measure_costs.py --shape llada-8b --layers 32 --device cuda)
if [[ $device == cpu ]]; then
  record costs SKIP 0 "for CUDA alone"
else
  step costs 60 "${costs[@]}" --out "$logs/bench/costs.json"
fi
denoise=("$python" bench/bench_denoise.py --shape llada-8b --layers 32 --block 32 --device cuda)
if [[ $device == cpu ]]; then
  record denoise SKIP 0 "for CUDA alone"
elif ((deadline - SECONDS < 120)); then
  record denoise SKIP 0 "too little time was left"
else
  step denoise 150 "${denoise[@]}" --out "$logs/bench/denoise.md" --json "$logs/bench/denoise.json"
fi

# ---- report ----

mv "$logs/all" "$out/gpu_check.log"
[[ ! -d $logs/bench ]] || tar -C "$logs" -czf "$out/bench.tar.gz" bench
for name in bench costs denoise; do
  [[ ! -e $logs/$name.log || $device == cpu ]] || cat "$logs/$name.log"
done
{
  "$python" -c '
import platform, torch
gpu = torch.cuda.get_device_name() + ", " if torch.cuda.is_available() else ""
print(f"{gpu}{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}")
'
  echo
  echo "| step | result | seconds | note |"
  echo "|---|---|---|---|"
  printf '%s\n' "${rows[@]}"
} | tee "$out/gpu_check.md"
((failed == 0))
