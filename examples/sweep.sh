#!/usr/bin/env bash
# A sweep and its frontier: DynasorCoT with three thresholds and whole chains, by accuracy and cost.
#
#   bash examples/sweep.sh [QUESTIONS]
#
# Runs whose stacks differ only in arguments of their controller are a sweep: `compare` draws a frontier through them. A handful of questions
# shows how it works; useful intervals need some hundreds (compare says how many).
set -euo pipefail
questions=${1:-12}
mkdir -p runs/sweep && cd runs/sweep

for threshold in 2 3 5; do
  scaffolding-ext eval --config configs:dynasor_cot --dataset tinylm:held_out --limit "$questions" \
    --set controller.args.rule=consecutive --set controller.args.certainty_threshold=$threshold --output_path "threshold_$threshold"
done
scaffolding-ext eval --config configs:native --dataset tinylm:held_out --limit "$questions" --output_path whole

scaffolding-ext compare whole threshold_5 threshold_3 threshold_2 --report_path report.html
scaffolding-ext compare whole threshold_5 threshold_3 threshold_2 --json > compared.json
echo "open runs/sweep/report.html for the frontier"
