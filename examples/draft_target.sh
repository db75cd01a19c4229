#!/usr/bin/env bash
# Draft and target with a calibration: a small model drafts, a large one takes over a set share of the chunks.
#
#   bash examples/draft_target.sh [QUESTIONS]
#
# The calibration uses other questions than those answered (dataset.seed=1). With real models use a hundred questions or more.
set -euo pipefail
questions=${1:-6}
mkdir -p runs/draft_target && cd runs/draft_target
chains="--set controller.args.num_chains=2"

# 1. Score how strange the target finds the drafted chunks; these scores are the calibration.
scaffolding-ext calibrate conformal --config configs:conformal_draft_target --alpha 0.4 $chains \
  --set dataset.seed=1 --set dataset.num_samples="$questions" --output_path calibration.yaml

# 2. Answer with it: the target rewrites chunks that are stranger than 60 % of the calibration's.
scaffolding-ext eval --config configs:conformal_draft_target $chains \
  --set controller.args.rule.args.calibration=calibration.yaml --limit "$questions" --output_path conformal

# 3. The sceptic's baseline: a coin takes over as often.
scaffolding-ext eval --config configs:conformal_draft_target $chains \
  --set 'controller.args.rule={type: coin, args: {rate: 0.4}}' --limit "$questions" --output_path coin

scaffolding-ext compare coin conformal
