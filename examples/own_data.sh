#!/usr/bin/env bash
# DynasorCoT on your own questions: a dataset, a stack file, a check, two runs and their comparison.
#
#   bash examples/own_data.sh
#
# Everything is written into the folder runs/own_data. For your own questions replace problems.jsonl (any JSONL with "question" and "answer"),
# for your own model the name behind `model` (docs/models.md has recipes).
set -euo pipefail
mkdir -p runs/own_data && cd runs/own_data

cat > problems.jsonl <<'END'
{"id": "walk", "question": "Start with 5. Apply a+3,b-2. Find the total.", "answer": 6}
{"id": "run", "question": "Start with 2. Apply a+1,b+4. Find the total.", "answer": 7}
{"id": "climb", "question": "Start with 9. Apply a-4,b+2,c-3. Find the total.", "answer": 4}
END

cat > stack.yaml <<'END'
controller:
  type: DynasorCoTController      # asks the running chain for its answer, and ends it when the answers agree
  args: {max_tokens: 800, chunk_size: 32, certainty_threshold: 3}
sampling: {temperature: 0.7}
workers:
  generation:
    type: HuggingFaceWorker
    args: {model: tinylm/target}
dataset: problems.jsonl
seed: 0
END

scaffolding-ext check stack.yaml
scaffolding-ext eval --config stack.yaml --output_path dynasor
scaffolding-ext eval --config stack.yaml --output_path plain \
  --set 'controller={type: NativeGenerationController, args: {sampling_params: {max_tokens: 800}}}'
scaffolding-ext compare plain dynasor --report_path report.html
echo "open runs/own_data/report.html to step through both chains of each question"
